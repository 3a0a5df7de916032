"""What Slurm says about the cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping


def gpu_types(environ: Mapping[str, str], partition: str | None = None) -> tuple[str, ...] | None:
    """The types of GPU that the nodes have as GRES, "" for GPUs without one; None when Slurm does not answer.

    Source: sinfo(1), format %G: `gpu:l4:4(S:0-1),gpu:a100:2,nic:1`, or `gpu:4`, or `(null)`.
    """
    command = ["sinfo", "--noheader", "--format=%G", *([f"--partition={partition}"] if partition else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=dict(environ), check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return parse_gres(done.stdout)


def parse_gres(text: str) -> tuple[str, ...]:
    """The GPU types in a list of GRES texts.

    >>> parse_gres("gpu:l4:4(S:0-1),gpu:a100:2,nic:1\\n(null)\\ngpu:4\\n")
    ('', 'a100', 'l4')
    """
    types = set()
    for item in text.replace("\n", ",").split(","):
        name, *rest = item.split("(")[0].strip().split(":")
        if name == "gpu":
            types.add(rest[0] if rest and not rest[0].isdigit() else "")
    return tuple(sorted(types))
