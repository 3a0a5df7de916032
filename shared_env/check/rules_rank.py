"""Rules about ranks: who expands them, and who fixes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .commands import PER_TASK, RANKS
from .finding import Hit, rule
from .options import option
from .torchrun_trap import frozen, trapped_node_rank, written

if TYPE_CHECKING:
    from .commands import Command
    from .options import Option
    from .programs import Start
    from .shell_syntax import Piece, Word
    from .subject import Subject

NODE_RANK_OPTIONS = {"torchrun": "node_rank", "accelerate": "machine_rank", "deepspeed": "node_rank"}


@rule("MN101", "error", "A per-task variable is expanded by the batch shell")
def frozen_by_the_batch_shell(subject: Subject) -> Iterator[Hit]:
    """The batch shell is task 0 on node 0: what it expands in an srun line is 0 for every task."""
    if not (subject.multi and subject.batch):
        return
    found: dict[int, tuple[Word, Piece, Option | None]] = {}  # the innermost command that holds the expansion
    for command in subject.script.commands:
        srun = command.launcher
        if srun is None or srun.name != "srun" or srun.scope.launcher is not None or subject.is_sub_step(srun):
            continue
        trap = trapped_node_rank(command)
        for word in command.words:
            piece = frozen(word)
            if piece is not None and not _given(subject, piece):
                ours = trap if (trap is not None and trap.value is word) or (trap and trap.word is word) else None
                found[piece.offset] = (word, piece, ours)
    for word, piece, trap in found.values():
        name = next(name for name in piece.names if name in PER_TASK)
        text = written(trap) if trap is not None else word.source
        message = f"the batch shell puts in its own {name}, so every task of the srun gets the same value (0)"
        fix = f"let each task expand it: srun bash -c '... {_single_quoted(text)} ...' (single quotes, or \\${name})"
        yield Hit(trap.word.offset if trap else word.offset, text, message, fix)


def _given(subject: Subject, piece: Piece) -> bool:
    """RANK and the like from the task's env are plain data, the same everywhere; MN113 speaks about them."""
    return all(name in subject.env for name in piece.names if name in PER_TASK)


def _single_quoted(text: str) -> str:
    """The text for use inside single quotes, cut to the part that matters."""
    return text if len(text) < 100 and "'" not in text and "\n" not in text else "..."


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
    item = option(start.options, NODE_RANK_OPTIONS[start.kind])
    launcher = command.launcher
    here = subject.everywhere(launcher) if launcher is None or launcher.name == "srun" else False
    dynamic = any(other.name.startswith("rdzv_") for other in start.options)
    if item is None or item.value is None or command.conditional or dynamic or not here:
        return []
    text = item.value.literal
    return [item] if text is not None and text.isascii() and text.isdigit() else []


@rule("MN113", "error", "env fixes a rank")
def rank_in_env(subject: Subject) -> Iterator[Hit]:
    """One value in env reaches every process; a rank must differ between them."""
    for name in sorted(RANKS | {"WORLD_SIZE"}) if subject.multi else ():
        if name not in subject.env:
            continue
        if name == "WORLD_SIZE":
            message = "the number of processes is fixed here and no longer follows num_nodes or the tasks of a step"
        else:
            message = f"every process of every node gets the same {name}, so all of them claim to be process {name}"
            message = f"every process gets the same {name}, and a group with a duplicate rank never forms"
        severity = "warning" if name == "WORLD_SIZE" else ""
        fix = f"remove {name} from env; it is set for each process"
        yield Hit(0, f"{name}: {subject.env[name]}", message, fix, f"env.{name}", severity)
