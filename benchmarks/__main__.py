"""Measure everything and write RESULTS.md; some words of the rows' names as arguments measure only those groups."""

from __future__ import annotations

import compileall
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

from . import python, shells, slurm
from .measure import Row

HERE = Path(__file__).resolve().parent
PEERS = ("submitit", "simple_slurm", "ClusterShell", "python-hostlist")


def sky_python() -> str:
    """The interpreter of the tests' SkyPilot, which is built when it is not there."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from skypilot.environment import environment

    return str(environment() / "bin" / "python")


GROUPS: dict[str, Callable[[], Iterable[Row]]] = {
    "shells": shells.rows,
    "imports": lambda: python.imports(sky_python()),
    "start": python.start,
    "hostlists": python.hostlists,
    "scripts": python.scripts,
    "submissions": slurm.submissions,
    "preflights": slurm.preflights,
}


def first_line(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    linux = ".".join(platform.release().split(".")[:2])
    peers = ", ".join(f"{name} {version(name)}" for name in PEERS)
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs ({model}), Linux {linux}, "
        f"Python {platform.python_version()}, {first_line('bash', '--version').split('(')[0].strip()}, "
        f"{first_line('/usr/sbin/slurmctld', '-V')} (submissions: 26.05 with pyslurm 25.11.2), {peers}."
    )


def value(number: float, unit: str) -> str:
    return f"{number:.3g}{unit if unit == 'x' else ' ' + unit}"


def line(row: Row) -> str:
    goal = "" if row.goal is None else f"<= {value(row.goal, row.unit)}"
    mark = "" if row.goal is None else "yes" if row.met else "**no**"
    return f"| {row.what} | {row.against} | {value(row.value, row.unit)} | {goal} | {mark} | {row.note} |"


def main() -> int:
    """Print each row when it is there; write the file when all groups were measured."""
    wanted = sys.argv[1:] or list(GROUPS)
    if unknown := set(wanted) - set(GROUPS):
        print(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    for package in ("shared_env", "tl_slurm_adapter", "tl_sky_adapter"):
        compileall.compile_dir(HERE.parent / package, quiet=1)  # as an installed package is
    lines, where = [], machine()
    for name in wanted:
        print(f"-- {name}", file=sys.stderr)
        for row in GROUPS[name]():
            lines.append(line(row))
            print(lines[-1], flush=True)
    if wanted == list(GROUPS):
        intro = (HERE / "intro.md").read_text()
        table = "| what | against | measured | goal | met | |\n|---|---|---|---|---|---|\n" + "\n".join(lines)
        (HERE / "RESULTS.md").write_text(f"{intro}\n{where}\n\n{table}\n")
        print(f"written to {HERE / 'RESULTS.md'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
