"""Run a task as several nodes on this machine, without a cluster: the embedded default, `shared-env try`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared_env.inherit import without_launchers

from .machine import Node, TryError, make_nodes
from .processes import Process, Processes

if TYPE_CHECKING:
    from shared_env.check.subject import Subject
    from shared_env.task import Task

__all__ = ["NeedsSlurm", "NodeResult", "Result", "TryError", "choose_provider", "run_locally"]
PROVIDERS = ("slurm", "skypilot")


class NeedsSlurm(TryError):  # noqa: N818 (it says what is needed)
    """The task starts its processes with srun: only a Slurm can run it."""


@dataclass(frozen=True)
class NodeResult:
    """How a node ended. `exit_status` is None where nothing ran; `state` is "done", "failed", "ended" or "idle"."""

    node: str
    address: str
    ranks: list[int]
    exit_status: int | None
    seconds: float
    state: str


@dataclass(frozen=True)
class Result:
    """How a run ended: `ended_by` is "", "failure", "timeout" or "signal"; `exit_status` is 0, the status of the
    first program that failed, 124 after the timeout, 128 + N after signal N."""

    provider: str
    nodes: list[NodeResult]
    ended_by: str
    exit_status: int
    seconds: float


def run_locally(
    task: Task,
    *,
    provider: str | None = None,
    num_nodes: int | None = None,
    gpus_per_node: int | None = None,
    timeout: float | None = None,
    fd: int = 1,
    colour: bool = False,
    tell: Callable[[str], Any] = lambda text: None,
) -> Result:
    """Run a task as nodes on this machine, each with a session of its own, and wait for the end.

    What runs is the text that the adapter would send, in an environment with the variables that the system gives to
    a node. Must be called in the main thread: signals end the run.

    Args:
        task: what `load_task` returned.
        provider: "slurm" or "skypilot"; the task's own when left out (see `choose_provider`).
        num_nodes: instead of the task's.
        gpus_per_node: processes that torchrun is to start on a node, instead of the number in `accelerators`.
        timeout: seconds.
        fd: where the output of the nodes goes, each line behind the name of its node.
        colour: coloured names.
        tell: is given remarks for the user, before anything starts.

    Raises:
        NeedsSlurm: the script calls srun.
        TryError: it cannot be run here; the message says why.
        OSError: `fd` cannot be written.
    """
    from shared_env.check.subject import Subject

    chosen = provider or choose_provider(task, tell)
    nodes = num_nodes or task.num_nodes
    subject = Subject(task.model_copy(update={"provider": chosen, "num_nodes": nodes}))
    if not (subject.task.script or "").strip():
        raise TryError("the task has no script: add `script: |` with the command to run")
    if chosen == "slurm" and (lines := _srun_lines(subject)):
        raise NeedsSlurm(f"{lines[0]} calls srun, which needs Slurm")
    cwd = _directory(task, chosen)
    for text in _remarks(subject, gpus_per_node):
        tell(text)
    gpus = (subject.gpus or 0) if gpus_per_node is None else gpus_per_node
    places = make_nodes(nodes, gpus, os.environ)
    run = _system(subject, places, gpus, cwd)
    began = time.monotonic()
    with Processes(fd, colour=colour, timeout=timeout) as processes:
        started = run.run(processes)
    results = [_node_result(node, started.get(node.index)) for node in places]
    return Result(chosen, results, processes.ended_by, processes.exit_status, round(time.monotonic() - began, 3))


def choose_provider(task: Task, tell: Callable[[str], Any] = lambda text: None) -> str:
    """The provider of a task; without one, SLURM for a script with srun or #SBATCH lines, else SkyPilot.

    Raises:
        TryError: the provider runs no several nodes.
    """
    if task.provider in PROVIDERS:
        return task.provider
    if task.provider is not None:
        raise TryError(
            f"resources.provider is {task.provider!r}: only slurm and skypilot run several nodes; add --provider slurm "
            "or --provider skypilot"
        )
    from shared_env.check.subject import Subject

    subject = Subject(task.model_copy(update={"provider": "slurm"}))
    chosen = "slurm" if subject.directives or _srun_lines(subject) else "skypilot"
    other = "skypilot" if chosen == "slurm" else "slurm"
    tell(f"the task names no provider: run as on {chosen} (--provider {other} for the other)")
    return chosen


def _system(subject: Subject, nodes: list[Node], gpus: int, cwd: str) -> Any:
    environ = without_launchers(os.environ)
    if subject.sky:
        from .skypilot import SkyRun

        return SkyRun(subject.task, nodes, gpus, environ, cwd)
    from shared_env.check.layout import Layout, tasks_per_node

    from .slurm import SlurmRun

    tasks = tasks_per_node(Layout(()), subject.job, len(nodes)) or 1
    return SlurmRun(subject.task, nodes, gpus, environ, cwd, tasks)


def _srun_lines(subject: Subject) -> list[str]:
    """Where srun is called, for a message."""
    found = []
    for key, script in (("setup", subject.setup), ("script", subject.script)):
        for command in script.commands:
            if command.name == "srun":
                line = script.lines.position(command.offset)[0]
                found.append(f"line {subject.task.line_of(key, line) or line} ({key})")
    return found


def _remarks(subject: Subject, gpus_per_node: int | None) -> list[str]:
    found = []
    task = subject.task
    if subject.multi and subject.batch:
        rest = "node2 is" if task.num_nodes == 2 else f"node2 to node{task.num_nodes} are"
        found.append(
            f"the script never calls srun, so it runs on node1 only and {rest} idle, as on a real cluster; start the "
            "program with srun, or write launch: per-node"
        )
    if task.accelerators is not None and subject.gpus is None and gpus_per_node is None:
        found.append("accelerators names no single number of GPUs: run without; --gpus-per-node N sets one")
    if task.file_mounts:
        found.append("file_mounts are not made here: the nodes see the files of this machine")
    if task.workdir is not None and not isinstance(task.workdir, str):
        found.append("workdir is no local directory: run in the current one")
    return found


def _directory(task: Task, provider: str) -> str:
    """SkyPilot runs in a copy of workdir; sbatch in the directory where it is called."""
    if provider != "skypilot" or not isinstance(task.workdir, str):
        return str(Path.cwd())
    path = Path(task.workdir).expanduser().resolve()
    if not path.is_dir():
        raise TryError(f"workdir {task.workdir!r} is no directory here")
    return str(path)


def _node_result(node: Node, process: Process | None) -> NodeResult:
    if process is None or process.exit_status is None:
        return NodeResult(node.name, node.address, list(node.ranks), None, 0.0, "idle")
    state = "ended" if process.was_ended else "failed" if process.exit_status else "done"
    return NodeResult(node.name, node.address, list(node.ranks), process.exit_status, round(process.seconds, 3), state)
