"""Interleaved rounds, medians of pairs: what a busy machine does to one side it does to the other, too."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One line of the results. `goal` is the most that `value` may be; None where there is only something to see."""

    what: str
    against: str
    value: float
    unit: str = "x"
    goal: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        return self.goal is None or self.value <= self.goal


def interleaved(rounds: int, **runs: Callable[[], float]) -> dict[str, list[float]]:
    """Each run once a round, in turn; every run returns its own cost. The first round warms up and is not kept."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            cost = run()
            if number:
                samples[name].append(cost)
    return samples


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of the rounds."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def process(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> float:
    """CPU seconds, user and system, of a process and of all that it waited for."""
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    pid = os.posix_spawn(argv[0], argv, dict(os.environ if environ is None else environ), file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(argv)[:200]}: wait status {status}")
    return usage.ru_utime + usage.ru_stime


def calls(function: Callable[[], Any], number: int = 1) -> float:
    """CPU seconds of one call, the mean of `number`."""
    start = time.process_time()
    for _ in range(number):
        function()
    return (time.process_time() - start) / number


def wall(function: Callable[[], Any]) -> float:
    """Seconds until the function returns."""
    start = time.monotonic()
    function()
    return time.monotonic() - start
