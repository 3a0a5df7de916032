"""sbatch's options as attributes of pyslurm's JobSubmitDescription, and what the sbatch command adds by itself.

pyslurm reads no `#SBATCH` line and knows nothing of the sbatch command, which does more than pass options on: it
counts tasks and CPUs, and puts variables into the job's environment. Both are done here (sbatch(1), OUTPUT ENVIRONMENT
VARIABLES; compared with what sbatch 26.05 sends).
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .options import Option, OptionError

# slurm.h: NO_VAL and NO_VAL16, "not given". pyslurm would put its own default of 1 in the place of None.
NOT_GIVEN, NOT_GIVEN_16 = 0xFFFFFFFE, 0xFFFE
_DISTRIBUTION = re.compile(
    r"(block|cyclic):(block|cyclic|fcyclic):(block|cyclic|fcyclic)(,pack|,nopack)?", re.IGNORECASE
)
_PLANE = re.compile(r"plane=(\d+)", re.ASCII)
_PROFILES = frozenset(("none", "all", "energy", "task", "lustre", "network"))
_MAILS = frozenset(("array_tasks", "begin", "end", "fail", "requeue", "stage_out", "time_limit")) | {
    f"time_limit_{percent}" for percent in (50, 80, 90)
}
# Variables of the job that the sbatch command derives from an option, and in which form.
_VARIABLES: dict[str, tuple[str, Callable[[str], str]]] = {
    "acctg-freq": ("SLURM_ACCTG_FREQ", str),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK", str),
    "distribution": ("SLURM_DISTRIBUTION", lambda text: "plane" if text.startswith("plane") else text.lower()),
    "dependency": ("SLURM_JOB_DEPENDENCY", str),
    "gpus": ("SLURM_GPUS", str),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", str),
    "gpus-per-socket": ("SLURM_GPUS_PER_SOCKET", str),
    "mem-per-gpu": ("SLURM_MEM_PER_GPU", str),
    "network": ("SLURM_NETWORK", str),
    "ntasks-per-core": ("SLURM_NTASKS_PER_CORE", str),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE", str),
    "ntasks-per-socket": ("SLURM_NTASKS_PER_SOCKET", str),
    "open-mode": ("SLURM_OPEN_MODE", lambda text: text[:1].lower()),
    "overcommit": ("SLURM_OVERCOMMIT", lambda _: "1"),
    "threads-per-core": ("SLURM_THREADS_PER_CORE", str),
}
# Since 23.11 sbatch lets the launchers of MPI libraries start their daemons as srun --external-launcher.
_LAUNCHERS = {
    "HYDRA_BOOTSTRAP": "slurm",
    "HYDRA_LAUNCHER_EXTRA_ARGS": "--external-launcher",
    "I_MPI_HYDRA_BOOTSTRAP": "slurm",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "--external-launcher",
    "OMPI_MCA_plm_slurm_args": "--external-launcher",
    "PRTE_MCA_plm_slurm_args": "--external-launcher",
}


def attributes(options: Sequence[Option], nodes: int, known: Callable[[str], bool]) -> dict[str, Any]:
    """The attributes that say what OPTIONS, one of each name, say to sbatch, for a job of NODES nodes.

    Args:
        options: the options of a request.
        nodes: its number of nodes.
        known: whether this pyslurm's JobSubmitDescription has an attribute of that name.

    Raises:
        OptionError: this pyslurm cannot say what an option says; the message names the option.

    >>> attributes([Option("time", "90"), Option("hold")], 1, lambda name: True)["time_limit"]
    90
    """
    values: dict[str, Any] = {}
    by_name = {option.name: option for option in options}
    for option in options:
        if option.name == "export":
            continue  # becomes the environment
        name = next(filter(known, option.spec.pyslurm or ()), None)
        convert = _CONVERT.get(option.name, _text)
        if name is None:
            cannot(option)
        value = convert(option)
        if isinstance(values.get(name), dict):  # --gres and --gpus-per-node are one attribute
            value = {**values[name], **value}
        values[name] = value
    if "hold" in by_name:
        values["priority"] = 0  # stronger than --priority
    tasks = task_count(by_name, nodes)
    cpus = int(values.get("cpus_per_task") or 0)
    values["nodes"] = nodes
    values["ntasks"] = NOT_GIVEN if tasks is None else tasks
    values["cpus_per_task"] = cpus or NOT_GIVEN_16
    # pyslurm's name for the CPUs of the whole job
    values["min_cpus_per_node"] = nodes if "overcommit" in by_name else (tasks or nodes) * (cpus or 1)
    # None would be every kind of profile, to judge by the job's SLURM_PROFILE; an iterator without items is none
    values.setdefault("profile_types", iter(()))
    values.setdefault("name", "sbatch")
    values.setdefault("standard_in", "/dev/null")
    values.setdefault("standard_output", "slurm-%A_%a.out" if "array" in by_name else "slurm-%j.out")
    values["working_directory"] = str(Path(values.get("working_directory", "")).absolute())
    return values


def task_count(by_name: Mapping[str, Option], nodes: int) -> int | None:
    """The number of tasks that the sbatch command sends; None: it sends none, and Slurm starts one a node."""
    if "ntasks" in by_name:
        return _number(by_name["ntasks"])
    if "ntasks-per-node" in by_name:
        return nodes * _number(by_name["ntasks-per-node"])
    shape = [by_name[name] for name in ("sockets-per-node", "cores-per-socket", "threads-per-core") if name in by_name]
    tasks = nodes
    for option in shape:
        tasks *= _number(option)
    return tasks if shape else None


def environment(
    options: Sequence[Option], nodes: int, environ: Mapping[str, str], limits: Callable[[str], bool]
) -> dict[str, str]:
    """The environment of the job: what --export leaves of ENVIRON, and the variables of the sbatch command.

    Args:
        options: the options of a request, one of each name.
        nodes: its number of nodes.
        environ: the environment that the sbatch command would get.
        limits: whether Slurm passes a limit, such as "NOFILE", on to jobs (slurm.conf(5), PropagateResourceLimits).

    Raises:
        OptionError: the value of --export cannot be read with certainty.
    """
    by_name = {option.name: option for option in options}
    env = _exported(by_name.get("export"), environ)
    env.update({name: value for name, value in _LAUNCHERS.items() if name not in env})
    env.update(
        SLURM_SUBMIT_DIR=str(Path.cwd()),
        SLURM_SUBMIT_HOST=socket.gethostname(),
        SLURM_PRIO_PROCESS=str(os.getpriority(os.PRIO_PROCESS, 0)),
        SLURM_UMASK=_umask(),
    )
    for name in ("CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS"):
        if limits(name) and "get-user-env" not in by_name:
            soft = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
            env[f"SLURM_RLIMIT_{name}"] = str(soft % 2**64)  # no limit is -1 here, and 2**64 - 1 there
    for option in options:
        if option.name in _VARIABLES:
            variable, form = _VARIABLES[option.name]
            env[variable] = form(option.value or "")
    if (tasks := task_count(by_name, nodes)) is not None:
        env["SLURM_NTASKS"] = env["SLURM_NPROCS"] = str(tasks)
    if "cpus-per-task" in by_name:
        env["SLURM_TRES_PER_TASK"] = f"cpu={by_name['cpus-per-task'].value}"
    if "gpus-per-task" in by_name:
        env["SLURM_TRES_BIND"] = f"gres/gpu:per_task:{sum(_gres(by_name['gpus-per-task']).values())}"
    if plane := _PLANE.fullmatch((by_name["distribution"].value if "distribution" in by_name else None) or ""):
        env["SLURM_DIST_PLANESIZE"] = plane[1]
    if "get-user-env" in by_name:
        env["SLURM_GET_USER_ENV"] = "1"
    return env


def cannot(option: Option, why: str = "pyslurm cannot express it") -> NoReturn:
    """Raise the OptionError that says why pyslurm is no way to submit OPTION."""
    raise option.error(f"{option.flag}: {why}; submit with backend sbatch")


def _exported(option: Option | None, environ: Mapping[str, str]) -> dict[str, str]:
    """What --export keeps: all, or SLURM's own variables and those that it names or sets; see sbatch(1)."""
    value = "ALL" if option is None else option.value or ""
    if option is None or value.upper() == "ALL":
        return dict(environ)
    if any(char in value for char in "\"'*"):
        cannot(option, "quotes and patterns in it are for the sbatch command")
    env = {name: text for name, text in environ.items() if name.startswith("SLURM_")}
    for item in value.split(",") if value.upper() not in ("NONE", "NIL") else ():
        name, equals, text = item.partition("=")
        if item.upper() == "ALL":
            env.update(environ)
        elif equals:
            env[name] = text
        elif name in environ:
            env[name] = environ[name]
    env["SLURM_EXPORT_ENV"] = value
    if value.upper() != "NIL":
        env["SLURM_GET_USER_ENV"] = "1"
    return env


def _umask() -> str:
    # umask(2) cannot be read without being set, for all threads
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^Umask:\s*(\d+)", status, re.MULTILINE)
    return f"0{found[1][-3:]}" if found else "0022"


# --- values: one function a kind, each from the text of sbatch to what pyslurm takes --------------------------


def _text(option: Option) -> str:
    if not option.value:
        cannot(option, "pyslurm takes no empty value")
    return option.value


def _true(_: Option) -> bool:
    return True


def _false(_: Option) -> bool:
    return False


def _number(option: Option) -> int:
    found = re.fullmatch(r"\s*\+?(\d{1,9})\s*", option.value or "", re.ASCII)
    if not found:
        raise option.error(f"{option.flag} is no number; write it as --{option.name}=2")
    return int(found[1])


def _positive(option: Option) -> int:
    number = _number(option)
    return number if number else cannot(option, "pyslurm takes 0 for not given")


def _megabytes(option: Option) -> int:
    """Memory as sbatch reads it: megabytes without a unit, kilobytes rounded up. 0 asks for all of a node's."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", (option.value or "").lower(), re.ASCII)
    if not found:
        raise option.error(f"{option.flag} is no amount of memory; write it as --{option.name}=4G")
    number = int(found[1])
    if not number and option.name != "tmp":
        cannot(option, "pyslurm takes 0 for not given")
    return -(-number // 1024) if found[2] == "k" else number * 1024 ** " mgt".index(found[2] or "m") // 1024


def _minutes(option: Option) -> int | str:
    text = _text(option)
    if not re.fullmatch(r"[\d:-]+|unlimited|infinite", text, re.IGNORECASE | re.ASCII):
        cannot(option, "it is no time that pyslurm can read")
    if text.strip("0:-") == "":
        return "UNLIMITED"  # as sbatch(1) says of a limit of zero
    return int(text) if text.isdigit() else text


def _boot_delay(option: Option) -> str:
    text = _text(option)
    return f"{text}:00" if text.isdigit() else text  # pyslurm: seconds, sbatch: minutes


def _date(option: Option) -> str:
    text = _text(option)
    return cannot(option, "pyslurm takes a bare number for a Unix time") if text.isdigit() else text


def _signal(option: Option) -> dict[str, Any]:
    """[R][B]:SIGNAL[@SECONDS]; pyslurm's own reader raises on B:USR1@60."""
    found = re.fullmatch(r"(?:([RB]{1,2}):)?(?:SIG)?(\w+)(?:@(\d+))?", _text(option), re.IGNORECASE | re.ASCII)
    names = {each.name.removeprefix("SIG"): each.value for each in signal.Signals}
    number = (int(found[2]) if found[2].isdigit() else names.get(found[2].upper())) if found else None
    if not found or not number or found[3] == "0":
        cannot(option, "pyslurm needs a signal's name or number, and more than 0 seconds")
    flags = (found[1] or "").upper()
    return {
        "signal": number,
        "time": int(found[3] or 60),
        "batch_only": "B" in flags,
        "allow_reservation_overlap": "R" in flags,
    }


def _gres(option: Option) -> dict[str, int]:
    """`gpu:l4:2,nic:1` with names in front; a missing number is 1."""
    counts: dict[str, int] = {}
    for item in _text(option).split(","):
        parts = item.split(":")
        count = int(parts.pop()) if parts[-1].isdigit() else 1
        if option.name != "gres":
            parts.insert(0, "gpu")
        if len(parts) > 2 or not all(re.fullmatch(r"\w[\w.-]*", part, re.ASCII) for part in parts) or not count:
            cannot(option)
        counts[":".join(parts)] = counts.get(":".join(parts), 0) + count
    return cannot(option) if "none" in counts else counts


def _distribution(option: Option) -> int | str:
    """Plane sizes and all three levels at once: pyslurm's reader fails on, or completes, what is shorter."""
    text = _text(option)
    if plane := _PLANE.fullmatch(text):
        return int(plane[1])
    if not _DISTRIBUTION.fullmatch(text):
        cannot(option, "pyslurm knows plane=N, and all three levels, as in block:cyclic:cyclic, only")
    return text.lower()


def _one_of(words: frozenset[str] | set[str], option: Option) -> str:
    text = _text(option)
    if not words.issuperset(text.lower().split(",")):
        cannot(option)
    return text


def _yes_or_no(option: Option) -> bool:
    if option.value not in ("0", "1"):
        cannot(option)
    return option.value == "1"


def _bound(option: Option) -> str:
    return {"enforce-binding": "enforce-binding", "disable-binding": "disable-binding"}.get(
        (option.value or "").lower()
    ) or cannot(option)


def _frequency(option: Option) -> str:
    text = _text(option)
    return f"task={text}" if text.isdigit() else text


_KINDS: dict[Callable[[Option], Any], str] = {
    _true: "contiguous overcommit reboot requeue spread-job use-min-nodes",
    _false: "no-requeue",
    _number: "priority",
    _positive: "core-spec cores-per-socket cpus-per-task nodes ntasks ntasks-per-core ntasks-per-node "
    "ntasks-per-socket segment sockets-per-node thread-spec threads-per-core",
    _megabytes: "mem mem-per-cpu mem-per-gpu tmp",
    _minutes: "time time-min",
    _date: "begin deadline",
    _gres: "gpus gpus-per-node gpus-per-socket gpus-per-task gres",
    _yes_or_no: "wait-all-nodes",
}
_CONVERT: dict[str, Callable[[Option], Any]] = {
    **{name: convert for convert, names in _KINDS.items() for name in names.split()},
    "acctg-freq": _frequency,
    "delay-boot": _boot_delay,
    "distribution": _distribution,
    "signal": _signal,
    "exclusive": lambda option: _one_of({"user", "mcs"}, option) if option.value else "exclusive",
    "get-user-env": lambda option: cannot(option) if option.value else True,
    "gres-flags": _bound,
    "hold": lambda _: 0,
    "kill-on-invalid-dep": lambda option: option.value == "yes" or cannot(option),
    # ALL includes INVALID_DEPEND, which pyslurm does not know
    "mail-type": lambda option: None if option.value == "none" else _one_of(_MAILS, option),
    "nice": lambda option: _number(option) if option.value else 100,
    "no-kill": lambda option: option.value == "off",
    "nodelist": lambda option: (
        cannot(option, "the sbatch command reads the file") if "/" in _text(option) else option.value
    ),
    "open-mode": lambda option: _one_of({"append", "truncate"}, option).lower(),
    "oversubscribe": lambda _: "oversubscribe",
    "profile": lambda option: _one_of(_PROFILES, option),
    "requeue": lambda option: cannot(option) if option.value else True,
}

__all__ = ["OptionError", "attributes", "cannot", "environment", "task_count"]
