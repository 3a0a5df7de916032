"""Options of sbatch -> fields of a job in slurmrestd's JSON, for each version of its interface.

There are two families. Up to v0.0.38 (Slurm 22.05) a field is an option of sbatch, and its text is read by sbatch's
own parsers. From v0.0.39 on (Slurm 23.02) it is a member of the controller's job description and has a type.
Sources: the OpenAPI documents of slurmrestd 22.05.8, 24.11.5 and 26.05.5, and what these do with each field
(some that the documents name are refused or ignored).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable
from typing import Any, Final, NoReturn

from .options import Option
from .resources import RequestError

Fields = dict[str, Any]
OLDEST, LAST_OF_TEXT, NEWEST = 36, 38, 45
STEPS_READ_TRES = 41  # Slurm 24.05, where srun takes the CPUs of a task from the job's TRES


def number_of(api_version: str) -> int:
    """The last part of a version; ValueError on one that is not known here.

    >>> number_of("v0.0.40")
    40
    """
    found = re.fullmatch(r"v0\.0\.(\d+)", api_version)
    if not found or not OLDEST <= int(found[1]) <= NEWEST:
        raise RequestError(f"api_version {api_version!r} is not one of v0.0.{OLDEST} to v0.0.{NEWEST}")
    return int(found[1])


def job_fields(options: Iterable[Option], version: int) -> Fields:
    """The fields of OPTIONS, except --export; a RequestError names the option that VERSION cannot express.

    >>> job_fields([Option("mem", "2G"), Option("gpus-per-node", "l4:2")], 40)
    {'memory_per_node': {'set': True, 'number': 2048}, 'tres_per_node': 'gres/gpu:l4:2'}
    >>> job_fields([Option("mem", "2G"), Option("gpus-per-node", "l4:2")], 38)
    {'memory_per_node': '2G', 'gpus_per_node': 'l4:2'}
    """
    fields: Fields = {}
    convert = _as_text if version <= LAST_OF_TEXT else _typed
    for option in options:
        if option.name == "export":
            continue
        if version not in _VERSIONS.get(option.name, (version,)):
            _refuse(option, f"slurmrestd v0.0.{version} has no field for it")
        try:
            new = convert(option)
        except RequestError as error:
            _refuse(option, str(error))
        for name, value in new.items():
            if isinstance(value, list) and name in fields:
                fields[name] = [*fields[name], *value]
            elif name.startswith("tres_") and name in fields:
                fields[name] += "," + value
            else:
                fields[name] = value
    # What the sbatch command makes of them.
    if version >= STEPS_READ_TRES and "cpus_per_task" in fields:
        tres = fields.get("tres_per_task", "")
        if "cpu=" not in tres:
            fields["tres_per_task"] = f"cpu={fields['cpus_per_task']}" + ("," + tres if tres else "")
    per_task = re.search(r"=(\d+)$", fields.get("tres_per_task", ""))
    if per_task and "gpu" in fields["tres_per_task"]:
        fields.setdefault("tres_bind", f"gres/gpu:per_task:{per_task[1]}")
    return fields


def _refuse(option: Option, why: str) -> NoReturn:
    raise RequestError(f"{option.flag} cannot be submitted through REST: {why}; remove it, or submit with sbatch")


# --- v0.0.36 to v0.0.38: text ---------------------------------------------------------------------------------------

_SAME: Final = (
    "cpus-per-gpu gpus gpus-per-node gpus-per-socket gpus-per-task gres hold nodelist ntasks-per-gpu oversubscribe "
    "signal spread-job"
)
_TEXT_NAMES: Final = {
    "exclude": "exclude_nodes",
    "exclusive": "exclusive",
    "gpu-bind": "gpu_binding",
    "gpu-freq": "gpu_frequency",
    "gres-flags": "gres_flags",
    "kill-on-invalid-dep": "kill_on_invalid_dependency",
    "mem-per-gpu": "memory_per_gpu",
    "no-kill": "no_kill",
    "no-requeue": "no_requeue",
    "use-min-nodes": "minimum_nodes",
    # called as in sbatch, where later versions have other names
    **{name: name.replace("-", "_") for name in _SAME.split()},
}
# The value of an option that was given without one.
_TEXT_DEFAULTS: Final = {"exclusive": "exclusive", "nice": "100", "no-kill": "set"}


def _as_text(option: Option) -> Fields:
    name = _TEXT_NAMES.get(option.name) or option.spec.rest
    if name is None:
        raise RequestError("slurmrestd has no field for it")
    if option.name == "signal" and ":" in (option.value or ""):
        raise RequestError("slurmrestd of Slurm 22.05 takes no B: or R: before the signal")
    return {name: option.value or _TEXT_DEFAULTS.get(option.name, True)}


# --- v0.0.39 and later: types ---------------------------------------------------------------------------------------


def _typed(option: Option) -> Fields:
    if option.name in _SPECIAL:
        return _SPECIAL[option.name](option.value or "")
    name = option.spec.rest
    if name is None:
        raise RequestError("slurmrestd has no field for it")
    if option.spec.kind == "none":
        return {name: True}
    return {name: _integer(option.value or "") if name in _INTEGERS else option.value}


_INTEGERS: Final = (
    *("core_specification", "cores_per_socket", "cpus_per_task", "minimum_cpus_per_node", "ntasks_per_tres"),
    *("sockets_per_node", "tasks", "tasks_per_core", "tasks_per_node", "tasks_per_socket", "thread_specification"),
    "threads_per_core",
)


def _integer(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,9}", text, re.ASCII):
        raise RequestError(f"{text!r} is no whole number")
    return int(text)


def _number(amount: int | None) -> Fields:
    return {"set": True, "infinite": True} if amount is None else {"set": True, "number": amount}


def _megabytes(text: str) -> int:
    """A size as sbatch(1) takes it: MB unless a unit says otherwise."""
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)B?", text, re.ASCII | re.IGNORECASE)
    if not found:
        raise RequestError(f"{text!r} is no size such as 4000 or 4G")
    kilobytes = int(found[1]) << 10 * "KMGT".index(found[2].upper() or "M")
    return -(-kilobytes // 1024)


def _seconds(text: str) -> int | None:
    """A duration as sbatch(1) takes it: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s; None is without end."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    found = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?", text, re.ASCII)
    if not found:
        raise RequestError(f"{text!r} is no time such as 90, 1:30:00 or 2-12")
    days, *rest = found.groups()
    parts = [int(part) for part in rest if part is not None]
    # without days, one or two numbers are minutes and seconds
    hours, minutes, seconds = [*parts, 0, 0][:3] if days or len(parts) == 3 else [0, *parts, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _minutes(text: str) -> int | None:
    seconds = _seconds(text)
    return None if seconds is None else math.ceil(seconds / 60)


def _word(text: str, words: dict[str, Any]) -> Any:
    if text.lower() not in words:
        raise RequestError(f"{text!r} is none of {', '.join(word for word in words if word)}")
    return words[text.lower()]


def _hosts(text: str) -> list[str]:
    if "/" in text:
        raise RequestError("slurmrestd reads no file of node names")
    return [text]


def _tres(prefix: str, text: str, equals: bool = False) -> str:
    """`l4:2,a100:1` as trackable resources: `gres/gpu:l4:2,gres/gpu:a100:1`, or `gres/gpu:l4=2,...`."""
    items = [f"{prefix}{item}" for item in text.split(",")]
    return ",".join(re.sub(r":(\d+)$", r"=\1", item) if equals else item for item in items)


def _signal(text: str) -> Fields:
    found = re.fullmatch(r"(?:([BR]{1,2}):)?(\w+)(?:@([0-9]+))?", text, re.ASCII)
    if not found:
        raise RequestError(f"{text!r} is no signal such as B:USR1@60")
    flags = [{"B": "BATCH_JOB", "R": "RESERVATION_JOB"}[letter] for letter in found[1] or ""]
    fields: Fields = {"kill_warning_signal": found[2], "kill_warning_delay": _number(int(found[3] or 60))}
    return {**fields, "kill_warning_flags": flags} if flags else fields


def _switches(text: str) -> Fields:
    count, _, wait = text.partition("@")
    seconds = _seconds(wait) if wait else None
    return {
        "required_switches": _number(_integer(count)),
        **({"wait_for_switch": seconds} if seconds is not None else {}),
    }


_MAIL: Final = {
    **{name: [name.upper()] for name in ("begin", "end", "fail", "requeue", "stage_out", "array_tasks")},
    **{f"time_limit_{percent}": [f"TIME={percent}%"] for percent in (90, 80, 50)},
    "time_limit": ["TIME=100%"],
    "invalid_depend": ["INVALID_DEPENDENCY"],
    "none": [],
    "all": ["BEGIN", "END", "FAIL", "INVALID_DEPENDENCY", "REQUEUE", "STAGE_OUT"],
}
_PROFILE: Final = {
    **{name: [name.upper()] for name in ("none", "energy", "lustre", "network", "task")},
    "all": ["ENERGY", "LUSTRE", "NETWORK", "TASK"],
}
_SHARED: Final = {"": ["none"], "exclusive": ["none"], "user": ["user"], "mcs": ["mcs"], "topo": ["topo"]}
_GRES_FLAGS: Final = {"enforce-binding": ["GRES_BINDING_ENFORCED"], "disable-binding": ["GRES_BINDING_DISABLED"]}
_DEPENDENCY: Final = {"yes": ["KILL_INVALID_DEPENDENCY"], "no": ["NO_KILL_INVALID_DEPENDENCY"]}
_MEMORY_BINDING: Final = {name: [name.upper()] for name in ("none", "rank", "local", "prefer")}


def _each(words: dict[str, list[str]], text: str) -> list[str]:
    return [value for item in text.split(",") for value in _word(item, words)]


def _tres_per_task(text: str) -> Fields:
    cpus = re.search(r"(?:^|,)cpu[=:](\d+)", text)
    return {"tres_per_task": text, **({"cpus_per_task": int(cpus[1])} if cpus else {})}


_SPECIAL: Final[dict[str, Callable[[str], Fields]]] = {
    "cpus-per-gpu": lambda text: {"cpus_per_tres": f"gres/gpu:{_integer(text)}"},
    "delay-boot": lambda text: {"delay_boot": _seconds(text)},
    "exclude": lambda text: {"excluded_nodes": _hosts(text)},
    "exclusive": lambda text: {"shared": _word(text, _SHARED)},
    "gpu-bind": lambda text: {"tres_bind": f"gres/gpu:{text}"},
    "gpu-freq": lambda text: {"tres_freq": f"gpu:{text}"},
    "gpus": lambda text: {"tres_per_job": _tres("gres/gpu:", text)},
    "gpus-per-node": lambda text: {"tres_per_node": _tres("gres/gpu:", text)},
    "gpus-per-socket": lambda text: {"tres_per_socket": _tres("gres/gpu:", text)},
    "gpus-per-task": lambda text: {"tres_per_task": _tres("gres/gpu:", text, equals=True)},
    "gres": lambda text: {} if text.lower() == "none" else {"tres_per_node": _tres("gres/", text)},
    "gres-flags": lambda text: {"flags": _word(text, _GRES_FLAGS)},
    "hold": lambda _: {"hold": True},
    "kill-on-invalid-dep": lambda text: {"flags": _word(text, _DEPENDENCY)},
    "mail-type": lambda text: {"mail_type": _each(_MAIL, text)},
    "mem": lambda text: {"memory_per_node": _number(_megabytes(text))},
    "mem-bind": lambda text: {"memory_binding_type": _word(text, _MEMORY_BINDING)},
    "mem-per-cpu": lambda text: {"memory_per_cpu": _number(_megabytes(text))},
    "mem-per-gpu": lambda text: {"memory_per_tres": f"gres/gpu:{_megabytes(text)}"},
    "nice": lambda text: {"nice": _integer(text or "100")},
    "no-kill": lambda text: {"kill_on_node_fail": _word(text, {"": False, "set": False, "no": True, "off": True})},
    "no-requeue": lambda _: {"requeue": False},
    "nodelist": lambda text: {"required_nodes": _hosts(text)},
    "open-mode": lambda text: {"open_mode": _word(text, {"append": ["APPEND"], "truncate": ["TRUNCATE"]})},
    "oversubscribe": lambda _: {"shared": ["oversubscribe"]},
    "priority": lambda text: {"priority": _number(_integer(text))},
    "profile": lambda text: {"profile": _each(_PROFILE, text)},
    "requeue": lambda text: {"requeue": _word(text, {"": True})},
    "signal": _signal,
    "spread-job": lambda _: {"flags": ["SPREAD_JOB"]},
    "switches": _switches,
    "time": lambda text: {"time_limit": _number(_minutes(text))},
    "time-min": lambda text: {"time_minimum": _number(_minutes(text))},
    "tmp": lambda text: {"temporary_disk_per_node": _megabytes(text)},
    "tres-per-task": _tres_per_task,
    "use-min-nodes": lambda _: {"flags": ["PREFER_MINIMUM_NODE_COUNT"]},
    "wait-all-nodes": lambda text: {"wait_all_nodes": bool(_integer(text))},
}

# The versions that can express an option, where not all of those with a field of that name can.
_LATE: Final = range(LAST_OF_TEXT + 1, NEWEST + 1)
_VERSIONS: Final[dict[str, Container[int]]] = {
    **dict.fromkeys(
        ["contiguous", "overcommit", "reboot", "network", "switches", "extra", "context", "container-id"], _LATE
    ),
    **dict.fromkeys(["tres-bind", "tres-per-task", "ntasks-per-tres"], _LATE),
    **dict.fromkeys(["oversubscribe", "prefer", "time-min", "container", "mcs-label"], range(38, NEWEST + 1)),
    "batch": _LATE,  # slurmrestd 22.05 crashes on it
    "priority": range(37, NEWEST + 1),
    "hint": (),  # slurmrestd 22.05 drops it
    "power": (),
    "distribution": (*range(OLDEST, 39), *range(41, NEWEST + 1)),
}
