"""The processes below this one, wherever they went: other sessions and orphans included (Linux; none elsewhere)."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


def adopt_orphans(on: bool) -> None:
    """Become the parent of the orphans among our descendants, so that they can be found (Linux)."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def descendants(without: set[int]) -> dict[int, int]:
    """The live processes below this one, but not those below `without`: pid -> session (proc(5), /proc/PID/stat).

    Empty where there is no /proc.
    """
    parents: dict[int, int] = {}
    sessions: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, parent, _, session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if state not in "ZX":
                pid = int(path.parent.name)
                parents[pid], sessions[pid] = int(parent), int(session)
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new and pid not in without}
        found |= new
    return {pid: sessions[pid] for pid in found}


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal; who has ended meanwhile does not matter."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
