"""What a task asks for, in the words of sbatch: accelerators, cpus, memory, time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from .options import Option, TaskLayout

# A flag of the user that already says it; the default is then not emitted.
GPU_FLAGS = frozenset(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"))
CPU_FLAGS = frozenset(("cpus-per-task", "cpus-per-gpu"))
MEMORY_FLAGS = frozenset(("mem", "mem-per-cpu", "mem-per-gpu"))


MOST = 2**31  # what Slurm can count: minutes, CPUs, megabytes


class RequestError(ValueError):
    """An argument that cannot become a job; nothing was submitted."""


def parse_accelerators(accelerators: object) -> tuple[str, int] | None:
    """Type and number of the GPUs of a node; the type is "" for any.

    >>> parse_accelerators("L4:2"), parse_accelerators({"H100": 8}), parse_accelerators("gpu:4")
    (('L4', 2), ('H100', 8), ('', 4))
    """
    if accelerators is None or accelerators == "":
        return None
    if isinstance(accelerators, Mapping) and len(accelerators) == 1:
        ((name, count),) = accelerators.items()
        accelerators = f"{name}:{count}"
    if not isinstance(accelerators, str):
        raise RequestError(
            f"accelerators: {accelerators!r} is a choice of several; Slurm takes one: write accelerators: 'L4:2'"
        )
    found = re.fullmatch(r"\s*([A-Za-z0-9][\w.-]*)\s*(?::\s*(\d+(?:\.0*)?)\s*)?", accelerators, re.ASCII)
    if not found or (found[2] and not 1 <= float(found[2]) < MOST):
        raise RequestError(
            f"accelerators: {_shown(accelerators)} is not TYPE:NUMBER with a whole number, such as 'L4:2'"
        )
    name = "" if found[1].lower() == "gpu" else found[1]
    return name, int(float(found[2] or 1))


def gpu_option(accelerators: object, gpu_types: Sequence[str] | None) -> Option | None:
    """`--gpus-per-node` for accelerators.

    Args:
        accelerators: such as 'L4:2'.
        gpu_types: the GPU types of the cluster's GRES, "" for GPUs without a type; None when not known, and then the
            type is asked for as it is written.

    Raises:
        RequestError: the cluster has no such type; the message lists what it has.
    """
    parsed = parse_accelerators(accelerators)
    if parsed is None:
        return None
    name, count = parsed
    if name and gpu_types is not None:
        same = [known for known in gpu_types if known.lower() == name.lower()]
        typed = [known for known in gpu_types if known]
        if same:
            name = same[0]
        elif not gpu_types:
            raise RequestError(f"accelerators: {name}:{count}: this cluster has no GPUs (sinfo -o %G)")
        elif "" in gpu_types:
            name = ""  # GPUs whose type the cluster does not name
        else:
            raise RequestError(
                f"accelerators: this cluster has no GPU type {name!r}; it has {', '.join(sorted(typed))}"
            )
    return Option("gpus-per-node", f"{name}:{count}" if name else str(count))


def cpu_option(cpus: object, layout: TaskLayout) -> Option | None:
    """`--cpus-per-task` for the CPUs of a node, such as 8 or '8+', shared by its tasks."""
    if cpus is None or cpus == "":
        return None
    per_node = _amount("cpus", cpus)
    tasks = layout.ntasks_per_node or math.ceil(layout.world_size_fallback / layout.nodes)
    return Option("cpus-per-task", str(max(1, math.ceil(per_node) // tasks)))


def memory_option(memory: object) -> Option | None:
    """`--mem` for the memory of a node in GB, such as 64, '64+' or '64GB'."""
    if memory is None or memory == "":
        return None
    text = str(memory).strip()
    if len(text) > 64:
        raise RequestError(f"memory: {_shown(text)} is no number > 0; write memory: 8 or memory: '8+'")
    text = re.sub(r"(?i)\s*gi?b?\s*(\+?)$", r"\1", text)
    amount = _amount("memory", text)
    return Option("mem", f"{int(amount)}G" if amount == int(amount) else f"{math.ceil(amount * 1024)}M")


def time_option(seconds: object) -> Option | None:
    """`--time` for a limit in seconds.

    >>> time_option(3600).value, time_option(200000).value
    ('01:00:00', '2-07:33:20')
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < MOST:
        raise RequestError(f"time_limit_seconds must be a number of seconds > 0, not {_shown(seconds)}")
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return Option("time", (f"{days}-" if days else "") + f"{hours:02}:{minutes:02}:{rest:02}")


def _amount(name: str, value: object) -> float:
    """A number such as 8, '8' or '8+' (at least 8: Slurm gives what is asked for)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\+?", str(value).strip(), re.ASCII)
    if isinstance(value, bool) or not found or not 0 < float(found[1]) < MOST:
        raise RequestError(f"{name}: {_shown(value)} is no number > 0; write {name}: 8 or {name}: '8+'")
    return float(found[1])


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # int() and str() stop at 4300 digits
        return "a number too long to print"
    return text if len(text) <= 80 else text[:77] + "..."
