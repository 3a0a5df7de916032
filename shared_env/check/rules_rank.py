"""Rules about ranks: who expands them, and who fixes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .commands import PER_TASK, RANKS
from .finding import Hit, rule
from .programs import start_of
from .torchrun_trap import frozen, trapped_node_rank, written

if TYPE_CHECKING:
    from .commands import Command
    from .options import Option
    from .programs import Start
    from .shell_syntax import Piece, Word
    from .subject import Subject


@rule("MN101", "error", "A per-task variable is expanded by the batch shell")
def frozen_by_the_batch_shell(subject: Subject) -> Iterator[Hit]:
    """The batch shell is task 0 on node 0: what it expands in an srun line is 0 for every task."""
    if not (subject.multi and subject.batch):
        return
    found: dict[int, tuple[Command, Word, Piece, Option | None]] = {}  # the innermost command that holds the expansion
    for command in subject.script.commands:
        srun = command.launcher
        if srun is None or srun.name != "srun" or srun.scope.launcher is not None or subject.is_sub_step(srun):
            continue
        trap, start = trapped_node_rank(command), start_of(command.words)
        ignored = start.node_rank if start is not None and start.is_dynamic else None
        for word in command.words:
            piece = frozen(word)
            if piece is not None and ignored is not None and word in (ignored.word, ignored.value):
                found.pop(piece.offset, None)  # wrong, but harmless: MN108 speaks about it
            elif piece is not None and not _given(subject, piece):
                ours = trap if (trap is not None and trap.value is word) or (trap and trap.word is word) else None
                found[piece.offset] = (command, word, piece, ours)
    for command, word, piece, trap in found.values():
        name = next(name for name in piece.names if name in PER_TASK)
        text = written(trap) if trap is not None else word.source
        message = f"the batch shell puts in its own {name}, so every task of the srun gets the same value (0)"
        if trap is not None:
            message += "; tl-slurm repairs this one by giving torchrun the dynamic rendezvous (PET_ variables)"
        offset, severity = (trap.word.offset, "warning") if trap else (word.offset, "")
        yield Hit(offset, text, message, _expanded_by_the_task(subject, command, name), severity=severity)


def _expanded_by_the_task(subject: Subject, command: Command, name: str) -> str:
    """What to type instead: the whole command in single quotes where that is certain to mean the same."""
    if command.shell.launcher is not None:
        return f"write \\${name} in the double quotes, or put the whole text in single quotes"
    srun = command.launcher
    written_here = srun is not None and all(word.offset >= srun.offset for word in (*srun.words, *command.words))
    if srun is None or not written_here or srun.words[-1] is not command.words[-1]:
        return f"let each task expand it: srun bash -c '... ${name} ...' (single quotes)"
    options = [word.source for word in srun.words[: srun.words.index(command.words[0])]]
    inner = " ".join(word.source for word in command.words)
    names = re.findall(r"\$\{?(\w+)", inner)
    set_here = any(subject.script.assigned(found) for found in names)  # perhaps not exported: unknown in the task
    if set_here or "'" in inner or "\n" in inner or len(inner) > 400:
        return f"let each task expand it: {' '.join(options)} bash -c '... ${name} ...' (single quotes)"
    return f"{' '.join(options)} bash -c '{inner}'"


def _given(subject: Subject, piece: Piece) -> bool:
    """RANK and the like from the task's env are plain data, the same everywhere; MN113 speaks about them."""
    return all(name in subject.env for name in piece.names if name in PER_TASK)


@rule("MN102", "error", "The node rank is a fixed number")
def literal_node_rank(subject: Subject) -> Iterator[Hit]:
    """Every node runs the same line, so a literal rank makes all nodes claim the same place."""
    if not subject.multi:
        return
    literal = [item for command, start in subject.starts for item in _literal_ranks(subject, command, start)]
    if len({item.value.literal for item in literal if item.value}) > 1:
        return  # one line a node, by hand
    for item in literal:
        name = "SKYPILOT_NODE_RANK" if subject.sky else "NODE_RANK" if subject.per_node else "SLURM_NODEID"
        option_text = item.word.text.split("=", 1)[0]
        right = f'{option_text}="${name}"'
        if subject.batch:
            right = f"srun bash -c 'torchrun ... {right} ...'"
        yield Hit(
            item.word.offset,
            written(item),
            "all nodes run this line and announce the same node rank, so the rendezvous waits for the others for ever",
            f"use the rank of the node: {right}",
        )


def _literal_ranks(subject: Subject, command: Command, start: Start) -> list[Option]:
    item = start.node_rank
    launcher = command.launcher
    here = subject.everywhere(launcher) if launcher is None or launcher.name == "srun" else False
    if item is None or item.value is None or command.conditional or start.is_dynamic or not here:
        return []
    text = item.value.literal
    return [item] if text is not None and text.isascii() and text.isdigit() else []


@rule("MN113", "warning", "env fixes a rank")
def rank_in_env(subject: Subject) -> Iterator[Hit]:
    """One value in env reaches every process; a rank must differ between them."""
    for name in sorted(RANKS | {"WORLD_SIZE"}) if subject.multi else ():
        if name not in subject.env:
            continue
        if name == "WORLD_SIZE":
            message = "the number of processes is fixed here and no longer follows num_nodes or the tasks of a step"
        else:
            message = f"every process gets the same {name}, and a group with a duplicate rank never forms"
        fix = f"remove {name} from env; it is set for each process"
        yield Hit(0, f"{name}: {subject.env[name]}", message, fix, f"env.{name}")
