"""What Slurm says about the cluster: how many nodes, which GPUs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from typing import NamedTuple

KEEP = 60.0  # seconds that an answer is good for: a server that submits many jobs asks once a minute


class Partition(NamedTuple):
    """`nodes`: how many it has, in whatever state. `gpu_types`: of their GRES, "" for GPUs without a type."""

    nodes: int
    gpu_types: tuple[str, ...]


_answers: dict[tuple[str | None, str | None], tuple[float, Partition | None]] = {}


def partition(environ: Mapping[str, str], name: str | None = None) -> Partition | None:
    """A partition of the cluster (of several names, the largest; of none, the default one).

    None when Slurm does not answer, or does not know it.
    """
    key = (environ.get("SLURM_CONF"), name)
    now = time.monotonic()
    if key not in _answers or now - _answers[key][0] > KEEP:
        _answers[key] = (now, _ask(environ, name))
    return _answers[key][1]


def _ask(environ: Mapping[str, str], name: str | None) -> Partition | None:
    command = ["sinfo", "--noheader", "--format=%P|%D|%G", *([f"--partition={name}"] if name else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=dict(environ), check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return parse_sinfo(done.stdout, default_only=name is None)


def parse_sinfo(text: str, default_only: bool) -> Partition | None:
    """Read lines of `sinfo --format=%P|%D|%G`; the default partition has a star.

    >>> parse_sinfo("debug*|2|gpu:l4:4(S:0-1),nic:1\\ndebug*|1|(null)\\nbig|9|gpu:8\\n", default_only=True)
    Partition(nodes=3, gpu_types=('l4',))
    """
    nodes: dict[str, int] = {}
    types = set()
    for line in text.splitlines():
        name, count, gres = line.split("|", 2)
        if default_only and not name.endswith("*"):
            continue
        nodes[name] = nodes.get(name, 0) + int(count)
        for item in gres.split(","):
            kind, *rest = item.split("(")[0].strip().split(":")
            if kind == "gpu":
                types.add(rest[0] if rest and not rest[0].isdigit() else "")
    return Partition(max(nodes.values()), tuple(sorted(types))) if nodes else None
