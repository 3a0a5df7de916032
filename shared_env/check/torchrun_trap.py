"""The one mistake that the SLURM adapter repairs: torchrun's node rank, expanded by the batch shell.

The batch shell has SLURM_NODEID = 0, so ``srun torchrun --node_rank=$SLURM_NODEID`` says 0 on every node and the
rendezvous never completes. No environment of a task can repair an argument that has already been expanded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .commands import PER_TASK
from .options import SLURM, Option, number, option, read_options
from .programs import start_of
from .walk import analyse

if TYPE_CHECKING:
    from .commands import Command
    from .shell_syntax import Piece, Word


@dataclass(frozen=True)
class TrapLocation:
    """Where the frozen node rank is written; ``line`` and ``column`` count from 1 in the script text."""

    line: int
    column: int
    text: str


def frozen(word: Word) -> Piece | None:
    """The expansion of a per-task variable that the script's own shell performs, else None."""
    for piece in word.expansions:
        if piece.shell.launcher is None and PER_TASK.intersection(piece.names):
            return piece
    return None


def is_single_task(srun: Command) -> bool:
    """A step of one task: what the batch shell expands is right there."""
    return number(option(read_options(srun.words[1:], SLURM)[0], "ntasks")) == 1


def torchrun_trap(script: str) -> TrapLocation | None:
    """The first srun that starts torchrun with a node rank expanded by the batch shell.

    Nothing is reported with a rendezvous option of the user's own, in single quotes, behind ``\\$``, in a comment or
    in a here-doc.

    >>> torchrun_trap('srun torchrun --nnodes=2 --node_rank=$NODE_RANK train.py').text
    '--node_rank=$NODE_RANK'
    >>> torchrun_trap("srun bash -c 'torchrun --node_rank=$NODE_RANK train.py'") is None
    True
    """
    if "srun" not in script or "rank" not in script:  # the usual script costs nothing
        return None
    analysed = analyse(script)
    for command in analysed.commands:
        node_rank = trapped_node_rank(command)
        if node_rank is not None:
            line, column = analysed.lines.position(node_rank.word.offset)
            return TrapLocation(line, column, written(node_rank))
    return None


def trapped_node_rank(command: Command) -> Option | None:
    """The frozen ``--node_rank`` of a torchrun command under srun."""
    srun = command.launcher
    if srun is None or srun.name != "srun" or command.shell.here_doc or srun.shell.launcher is not None:
        return None
    start = start_of(command.words)
    if start is None or start.kind != "torchrun" or is_single_task(srun):
        return None
    if any(item.name.startswith("rdzv_") for item in start.options):
        return None
    node_rank = option(start.options, "node_rank")
    return node_rank if node_rank and node_rank.value and frozen(node_rank.value) else None


def written(item: Option) -> str:
    """An option as it stands in the script, with its value."""
    if item.value is None or item.value.source == item.word.source:
        return item.word.source
    return f"{item.word.source} {item.value.source}"
