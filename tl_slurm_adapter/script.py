"""A multi-node task -> the text of a batch script. Nothing here runs a command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from shlex import quote
from typing import TYPE_CHECKING, Any, TypedDict

from shared_env.contract import NAMES
from shared_env.credentials import credentials_in, mask, shown_env
from shared_env.shell import remote_trap, slurm_block

from .options import (
    Directives,
    Option,
    TaskLayout,
    check_num_nodes,
    effective,
    leading_directives,
    parse_flags,
    task_layout,
)
from .resources import (
    CPU_FLAGS,
    GPU_FLAGS,
    MEMORY_FLAGS,
    RequestError,
    cpu_option,
    gpu_option,
    memory_option,
    time_option,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shared_env.task import Task

SHEBANG = "#!/bin/bash"
LEFT_OUT = "left out of this preview; set it where sbatch is called"
# srun reports the highest exit status. A task that Slurm ends with SIGTERM because another one failed would report
# 143 and hide that other status, so it reports 1. (The signal may reach this shell after the script: hence the sleep.)
# Other signals are the script's own business, and must not end the shell around it.
PER_NODE = """trap : HUP INT QUIT ALRM USR1 USR2 XCPU; trap t=1 TERM; "$0" "$@"; s=$?
[ $s != 143 ] || sleep 1; [ "$s${t-}" != 1431 ] || s=1; exit $s"""
_SHELL = re.compile(r"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(?:\S*/)?(?:bash|sh)(?:\s+-\S+)*\s*")


class RequestFields(TypedDict, total=False):
    """The keyword arguments of `render_batch_script`, `submit` and `test_only`."""

    num_nodes: int | None
    job_name: str | None
    partition: str | None
    sbatch_flags: str | None
    setup: str | None
    env: Mapping[str, str] | None
    accelerators: str | Mapping[str, int] | None
    cpus: str | float | None
    memory: str | float | None
    time_limit_seconds: float | None
    requeue: bool
    master_addr: str
    master_addr_suffix: str
    launch: str


def render_batch_script(run: str, **request: Unpack[RequestFields]) -> str:
    r"""The batch script of a task.

    Args:
        run: the script of the task; its own leading #SBATCH lines and `#!` line (bash or sh) are honoured.
        **request:
            num_nodes: nodes; above 1 the script gets the rendezvous block. None means 1.
            job_name, partition: None leaves them to Slurm.
            sbatch_flags: text of sbatch options, stronger than the #SBATCH lines of `run`.
            setup: shell text before the rendezvous block, on the first node.
            env: variables for setup and run; values are data and never expanded.
            accelerators: GPUs of a node, such as 'L4:2'.
            cpus: CPUs of a node, such as 8 or '8+'.
            memory: memory of a node in GB.
            time_limit_seconds: limit of the job's run time.
            requeue: ask Slurm to start the job again after a node failure or preemption; its log goes on in the file.
            master_addr: "hostname", or "ip" where node names do not resolve.
            master_addr_suffix: text behind the host name, such as "-ib".
            launch: "script" (run in the batch shell, on the first node) or "per-node" (once on every node).

    Raises:
        ValueError: an argument cannot become a job; the message names the line or value.

    >>> render_batch_script("srun hostname", job_name="two words").splitlines()[:3]
    ['#!/bin/bash', '#SBATCH --job-name="two words"', '#SBATCH --nodes=1']
    """
    return str(BatchRequest(run, **request))


@dataclass(frozen=True)
class BatchRequest:
    """A checked request for a job: `str()` of it is the batch script. Arguments: see `render_batch_script`.

    `gpu_types` are the GPU types of the cluster (`resources.gpu_option`); None when not known. `secret_names` are the
    variables of `env` that are credentials whatever their names say.
    """

    run: str
    num_nodes: int | None = 1
    job_name: str | None = None
    partition: str | None = None
    sbatch_flags: str | None = None
    setup: str | None = None
    env: Mapping[str, str] | None = None
    accelerators: str | Mapping[str, int] | None = None
    cpus: str | float | None = None
    memory: str | float | None = None
    time_limit_seconds: float | None = None
    requeue: bool = False
    master_addr: str = "hostname"
    master_addr_suffix: str = ""
    launch: str = "script"
    gpu_types: Sequence[str] | None = None
    secret_names: frozenset[str] = frozenset()
    nodes: int = field(init=False, default=1)
    options: tuple[Option, ...] = field(init=False, default=())
    layout: TaskLayout = field(init=False, repr=False)
    _body: Directives = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check()
        run = _text("script", self.run)
        body = leading_directives(run)
        # A task may stay None in num_nodes: that is one node.
        nodes = 1 if self.num_nodes is None else self.num_nodes
        given = effective([*body.options, *parse_flags(self.sbatch_flags)])
        check_num_nodes(given, nodes)
        for name, value in (
            ("run", run),
            ("setup", _text("setup", self.setup or "").rstrip("\n")),
            ("nodes", nodes),
            ("_body", body),
            ("layout", task_layout(given, nodes)),
            ("env", dict(self.env or {})),
        ):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "options", (*self._defaults(given), *given))

    @classmethod
    def from_task(cls, task: Task, **request: Any) -> BatchRequest:
        """The request of a task.yaml; keyword arguments that are not None win over the task.

        Raises:
            RequestError: the task is for another provider, or has no script.
        """
        if task.provider not in (None, "slurm"):
            several = " with num_nodes > 1" if task.num_nodes > 1 and task.provider != "skypilot" else ""
            raise RequestError(
                f"resources.provider is {task.provider!r}: {_instead(task.provider)}{several}; "
                "set resources.provider: slurm to run it on SLURM"
            )
        if task.script is None:
            raise RequestError("the task has no script: add `script: |` with the command to run")
        values: dict[str, Any] = {
            "num_nodes": task.num_nodes,
            "job_name": task.name,
            "setup": task.setup,
            "env": {**task.env, **task.secrets},
            "secret_names": frozenset(task.secrets),
            "accelerators": task.accelerators,
            "cpus": task.cpus,
            "memory": task.memory,
            "launch": task.launch,
        }
        values.update((name, value) for name, value in request.items() if value is not None)
        return cls(task.script, **values)

    @property
    def partition_asked(self) -> str | None:
        """The partition that the options name."""
        return next((option.value for option in self.options if option.name == "partition"), None)

    def with_gpu_types(self, gpu_types: Sequence[str] | None) -> BatchRequest:
        """The same request for a cluster that has these GPU types."""
        return self if gpu_types is None or not self.accelerators else replace(self, gpu_types=tuple(gpu_types))

    def __repr__(self) -> str:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        shown = {name: mask(value) if isinstance(value, str) else value for name, value in values.items() if value}
        shown["env"] = shown_env(self.env or {}, self.secret_names)
        return f"BatchRequest({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __str__(self) -> str:
        """The batch script."""
        return self._script(self.options, frozenset())

    def preview(self) -> tuple[str, int]:
        """The batch script without the values of credentials, and how many they are.

        It is still a batch script: what is left out comes from the environment of the one who submits it, and the job
        says so and ends where it is not there.
        """
        hidden = credentials_in(self.env or {}, self.secret_names)
        options = [option.without_credentials() for option in self.options]
        changed = sum(new.value != old.value for new, old in zip(options, self.options, strict=True))
        return self._script(options, hidden), len(hidden) + changed

    def _script(self, options: Sequence[Option], hidden: frozenset[str]) -> str:
        body = self._body
        lines = [body.shebang or SHEBANG, *(option.header() for option in options), ""]
        run = "\n".join(self.run.split("\n")[body.body_start :]) if body.options else self._plain_run()
        if self.nodes > 1:
            lines.append("unset " + " ".join(name for name in NAMES if name not in hidden))
        for name, value in (self.env or {}).items():
            word = f'"${{{name}:?{LEFT_OUT}}}"' if name in hidden else _value(value)
            lines.append(f"export {name}={word}")
        if self.setup:
            lines += ["# Setup", self.setup]
        if self.nodes > 1:
            lines.append(self._block().rstrip("\n"))
            if run.startswith("tfl-remote-trap ") and not (self._per_node or body.shebang):
                lines.append(remote_trap().rstrip("\n"))
        lines.append("")
        lines.append("# Main run command")
        lines.append(self._srun() if self._per_node else run.rstrip("\n"))
        return "\n".join(lines) + "\n"

    @property
    def frozen_rank(self) -> str | None:
        """The srun command in which torchrun's node rank is the same on every node (rule MN101), if there is one."""
        if self.nodes < 2 or self._per_node or "rank" not in self.run:  # the linter is slow to import
            return None
        from shared_env.check import torchrun_trap

        trap = torchrun_trap(self.run)
        return trap.text if trap else None

    @property
    def _per_node(self) -> bool:
        return self.launch == "per-node" and self.nodes > 1

    def _plain_run(self) -> str:
        return self.run.partition("\n")[2] if self._body.shebang else self.run

    def _block(self) -> str:
        return slurm_block(
            self.nodes,
            self.layout.world_size_fallback,
            master_addr=self.master_addr,
            master_addr_suffix=self.master_addr_suffix,
            frozen_rank=self.frozen_rank,
            per_node_script=self.run.removesuffix("\n") if self._per_node else None,
            keep_exit_trap="trap" in (self.setup or ""),
        )

    def _srun(self) -> str:
        interpreter = (self._body.shebang or SHEBANG)[2:].strip()
        return (
            f"srun --nodes={self.nodes} --ntasks={self.nodes} --ntasks-per-node=1 --distribution=block "
            f"sh -c {quote(PER_NODE)} {interpreter} "
            '"${SLURM_TASK_PROLOG%.task-prolog}.run"'
        )

    def _defaults(self, given: Sequence[Option]) -> list[Option]:
        """The options that this request adds to those that were given."""
        names = {option.name for option in given}
        if any(option.name == "gres" and "gpu" in (option.value or "") for option in given):
            names |= GPU_FLAGS
        out: list[Option] = []

        def add(option: Option | None, *said_by: str) -> None:
            if option is not None and not names.intersection((option.name, *said_by)):
                out.append(option)

        add(Option("job-name", self.job_name) if self.job_name else None)
        add(Option("partition", self.partition) if self.partition else None)
        add(Option("nodes", str(self.nodes)))
        if self.nodes > 1 and not self.layout.given:
            add(Option("ntasks", str(self.nodes)))
            add(Option("ntasks-per-node", "1"))
        add(gpu_option(self.accelerators, self.gpu_types), *GPU_FLAGS)
        add(cpu_option(self.cpus, self.layout), *CPU_FLAGS)
        add(memory_option(self.memory), *MEMORY_FLAGS)
        add(time_option(self.time_limit_seconds))
        add(Option("requeue") if self.requeue else None, "no-requeue")
        # The next attempt would write over the log of the one before. A file that is named may be of an earlier job.
        add(Option("open-mode", "append") if self.requeue else None, "no-requeue", "output")
        return out

    def _check(self) -> None:
        nodes = self.num_nodes
        if nodes is not None and (isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1):
            raise RequestError(f"num_nodes must be an integer >= 1, not {nodes!r}")
        if not isinstance(self.run, str) or not self.run.strip():
            raise RequestError("there is nothing to run: the script is empty")
        for name, value in (self.env or {}).items():
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise RequestError(f"env: {name!r} is no variable name: use letters, digits and _")
            if not isinstance(value, str):
                raise RequestError(
                    f"env: {name} has the value {shown_env({name: value})[name]!r}, which is no text: put it in quotes"
                )
            if "\0" in value:
                raise RequestError(f"env: {name} has a NUL byte in its value, which no environment can carry")
        if self.master_addr not in ("hostname", "ip"):
            raise RequestError(f"master_addr must be 'hostname' or 'ip', not {self.master_addr!r}")
        if not re.fullmatch(r"[A-Za-z0-9._-]*", self.master_addr_suffix):
            raise RequestError(f"master_addr_suffix {self.master_addr_suffix!r} cannot end a host name")
        if self.launch not in ("script", "per-node"):
            raise RequestError(f"launch must be 'script' or 'per-node', not {self.launch!r}")
        shebang = self.run.split("\n", 1)[0].rstrip("\r")
        if shebang.startswith("#!") and not _SHELL.fullmatch(shebang):
            raise RequestError(f"script: {shebang!r} is no shell: write a bash script that starts the program")


def _text(name: str, text: str) -> str:
    r"""Shell text with plain line ends: sbatch refuses \r\n."""
    if "\0" in text:
        raise RequestError(f"{name}: a NUL byte cannot stand in a script")
    return text.replace("\r\n", "\n")


def _value(value: str) -> str:
    r"""A value as a shell word that is only data. A carriage return must not meet a line end: sbatch refuses \r\n.

    >>> print(_value("it's $HOME"))
    'it'"'"'s $HOME'
    """
    return "\"$(printf '\\r')\"".join(quote(part) for part in value.split("\r")) if "\r" in value else quote(value)


def _instead(provider: str) -> str:
    if provider == "skypilot":
        return "launch it with tl_sky_adapter"
    return "only slurm and skypilot run several nodes; this provider cannot run it"


__all__ = ["BatchRequest", "RequestError", "RequestFields", "render_batch_script"]
assert tuple(RequestFields.__annotations__) == tuple(f.name for f in fields(BatchRequest) if f.init)[1:-2]  # noqa: S101
