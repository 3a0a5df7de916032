"""A task as Slurm runs it: the batch shell on the first node, and for `launch: per-node` one task on every node.

The variables are those that sbatch(1) and srun(1) list under "OUTPUT ENVIRONMENT VARIABLES", with loopback addresses
as host names. The text of the batch shell and the task prolog are those of a real job; what Slurm itself does in
between (srun, the prolog's output) is done here.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shared_env.contract import NAMES, derive_port
from shared_env.shell import slurm_block, task_prolog

from .machine import Node, TryError, why_not_free
from .processes import Process, Processes

if TYPE_CHECKING:
    from shared_env.task import Task

_PORTS_TO_TRY = 50
_SHELL = re.compile(r"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(?:\S*/)?(?:bash|sh)(?:\s+-\S+)*\s*")
# In place of srun in the batch shell: report what srun would hand to the tasks, and end with their status.
_STAND_IN = """
import os, sys
report, status = sys.argv[1:]
os.umask(umask := os.umask(0))
parts = [os.getcwdb(), b"%d" % umask, *(name + b"=" + value for name, value in os.environb.items())]
with open(report + ".part", "wb") as file:
    file.write(b"\\0".join(parts))
os.rename(report + ".part", report)
with open(status, "rb", buffering=0) as pipe:
    sys.exit(int(pipe.read(9) or 1))
"""


class SlurmRun:
    """One run of a task; `tasks_per_node` is the job's layout, which `launch: per-node` overrides with one."""

    def __init__(
        self, task: Task, nodes: list[Node], gpus: int, environ: Mapping[str, str], cwd: str, tasks_per_node: int = 1
    ) -> None:
        self.task = task
        self.nodes = nodes
        self.gpus = gpus
        self.cwd = cwd
        self.base = dict(environ)
        self.per_node = task.launch == "per-node" and len(nodes) > 1
        self.tasks = len(nodes) * (1 if self.per_node else tasks_per_node)
        self.interpreter = _interpreter(task.script or "")
        self.job_id = self._find_job_id()

    @property
    def node_list(self) -> str:
        """The host list of the job."""
        addresses = [node.address for node in self.nodes]
        plain = len(addresses) > 1 and len(set(addresses)) == len(addresses) < 255
        return f"127.0.0.[1-{len(addresses)}]" if plain else ",".join(addresses)

    def job_environment(self) -> dict[str, str]:
        """What the batch shell finds; it is task 0 of the job, whatever the job is."""
        count = len(self.nodes)
        each = f"(x{count})" if count > 1 else ""
        cpus = os.cpu_count() or 1
        return {
            **self.base,
            "ENVIRONMENT": "BATCH",
            "SLURM_CLUSTER_NAME": "try",
            "SLURM_JOB_NAME": self.task.name or "sbatch",
            "SLURM_JOB_PARTITION": "try",
            "SLURM_JOB_USER": self.base.get("USER") or str(os.getuid()),
            "SLURM_JOB_UID": str(os.getuid()),
            "SLURM_JOB_GID": str(os.getgid()),
            "SLURM_SUBMIT_DIR": self.cwd,
            "SLURM_SUBMIT_HOST": socket.gethostname(),
            **_both("SLURM_JOB_ID", "SLURM_JOBID", self.job_id),
            **_both("SLURM_JOB_NODELIST", "SLURM_NODELIST", self.node_list),
            **_both("SLURM_JOB_NUM_NODES", "SLURM_NNODES", count),
            **_both("SLURM_NTASKS", "SLURM_NPROCS", self.tasks),
            "SLURM_NTASKS_PER_NODE": str(self.tasks // count),
            "SLURM_TASKS_PER_NODE": f"{self.tasks // count}{each}",
            "SLURM_JOB_CPUS_PER_NODE": f"{cpus}{each}",
            "SLURM_CPUS_ON_NODE": str(cpus),
            **self._place(self.nodes[0]),
        }

    def step_environment(self, inherited: Mapping[str, str], node: Node) -> dict[str, str]:
        """What the task of a node finds in a step with one task a node: `inherited` is what srun was given."""
        count = len(self.nodes)
        env = {
            **inherited,
            **_both("SLURM_STEP_ID", "SLURM_STEPID", 0),
            "SLURM_STEP_NODELIST": self.node_list,
            "SLURM_STEP_NUM_NODES": str(count),
            "SLURM_STEP_NUM_TASKS": str(count),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{count})",
            "SLURM_DISTRIBUTION": "block",
            **self._place(node),
        }
        return {**env, "SLURM_STEP_GPUS": _indices(self.gpus)} if self.gpus else env

    def run(self, processes: Processes) -> dict[int, Process]:
        """Run it; the processes by node number."""
        files = processes.files
        if not self.per_node:
            batch = self._start_batch(processes, files / "slurm_script", self._body())
            processes.wait(lambda: batch.exit_status is not None)
            return {0: batch}
        for name, text in (("task-prolog", task_prolog(per_node=True)), ("run", self._script())):
            (files / name).write_text(text, encoding="utf-8", errors="surrogateescape")
            (files / name).chmod(0o700)
        report, status = files / "srun", files / "status"
        os.mkfifo(status, 0o600)
        # Open at both ends, so that opening it never waits, and that its reader ends when this process dies.
        pipe = os.open(status, os.O_RDWR)
        try:
            srun = shlex.join([sys.executable, "-I", "-S", "-c", _STAND_IN, str(report), str(status)])
            batch = self._start_batch(processes, files / "slurm_script", srun)
            processes.wait(lambda: report.exists() or batch.exit_status is not None)
            if processes.ended_by or not report.exists():  # the setup has left the script
                return {0: batch}
            started = self._step(processes, report.read_bytes())
            if not processes.ended_by:
                os.write(pipe, b"0")
                processes.wait(lambda: batch.exit_status is not None)
            return started
        finally:
            os.close(pipe)

    def _step(self, processes: Processes, report: bytes) -> dict[int, Process]:
        cwd, umask, *pairs = os.fsdecode(report).split("\0")
        inherited = dict(pair.split("=", 1) for pair in pairs)
        started: dict[int, Process] = {}
        for node in self.nodes:
            env = self.step_environment(inherited, node)
            for line in apply_prolog(_prolog_output(processes.files / "task-prolog", env), env):
                processes.print(node.name, line)
            argv = [*self.interpreter, str(processes.files / "run")]
            started[node.index] = processes.start(node.name, argv, env, cwd, umask=int(umask))
        processes.wait(lambda: all(process.exit_status is not None for process in started.values()))
        return started

    def _start_batch(self, processes: Processes, path: Path, run: str) -> Process:
        path.write_text(self.batch_text(run), encoding="utf-8", errors="surrogateescape")
        argv = [*self.interpreter, str(path)]
        return processes.start(self.nodes[0].name, argv, self.job_environment(), self.cwd)

    def batch_text(self, run: str) -> str:
        """The batch script with `run` as its command, without the part that places files on other machines."""
        env = {**self.task.env, **self.task.secrets}
        several = len(self.nodes) > 1
        lines = ["unset " + " ".join(NAMES)] if several else []
        lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
        if self.task.setup:
            lines += ["# Setup", _unix(self.task.setup)]
        if several:
            lines.append(slurm_block(len(self.nodes), self.tasks, with_prolog=False))
        return "\n".join([*lines, "# Main run command", run, ""])

    def _script(self) -> str:
        return _unix(self.task.script or "").removesuffix("\n") + "\n"

    def _body(self) -> str:
        first, _, rest = self._script().partition("\n")
        return rest if first.startswith("#!") else f"{first}\n{rest}"

    def _place(self, node: Node) -> dict[str, str]:
        """What differs between nodes."""
        rank = str(node.index)
        place = {"SLURMD_NODENAME": node.address, "SLURM_NODEID": rank, "SLURM_PROCID": rank, "SLURM_LOCALID": "0"}
        place["SLURM_GTIDS"] = rank
        if self.gpus:
            place |= {"SLURM_GPUS_ON_NODE": str(self.gpus), "SLURM_JOB_GPUS": _indices(self.gpus)}
            place |= {"SLURM_GPUS_PER_NODE": str(self.gpus), "CUDA_VISIBLE_DEVICES": node.devices}
        return place

    def _find_job_id(self) -> int:
        """A job id; where MASTER_PORT is derived from it, one whose port is free here."""
        given = self.task.env.get("MASTER_PORT") or self.task.secrets.get("MASTER_PORT")
        start = os.getpid()
        if len(self.nodes) == 1 or "MASTER_ADDR" in self.task.env:
            return start
        port, why = 0, ""
        for job_id in range(start, start + _PORTS_TO_TRY):
            try:
                port = int(given) if given else derive_port(job_id)
                why = why_not_free(port)
            except (ValueError, OverflowError):
                raise TryError(f"MASTER_PORT={given!r} is not a port: give a number from 1024 to 65535") from None
            if not why:
                return job_id
            if given:
                break
        raise TryError(
            f"MASTER_PORT would be {port}, but on this machine: {why}; end what listens there (ss -ltnp), or take "
            "another port for this run: --set MASTER_PORT=29501"
        )


def apply_prolog(output: str, env: dict[str, str]) -> list[str]:
    """Change `env` by the output of a task prolog, as slurmstepd does (srun(1), --task-prolog).

    Returns the lines to print.

    >>> env = {"A": "1", "B": "2"}
    >>> apply_prolog("export C=x=y\\nunset A\\nprint hello\\nother\\n", env), env
    (['hello'], {'B': '2', 'C': 'x=y'})
    """
    printed = []
    for line in output.split("\n"):
        word, _, rest = line.partition(" ")
        name, equals, value = rest.partition("=")
        if word == "export" and equals:
            env[name.strip()] = value
        elif word == "unset":
            env.pop(rest.strip(), None)
        elif word == "print":
            printed.append(rest)
    return printed


def _prolog_output(path: Path, env: Mapping[str, str]) -> str:
    done = subprocess.run([path], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    return os.fsdecode(done.stdout)


def _interpreter(script: str) -> list[str]:
    """The program of the `#!` line, bash without one; as for a real job, it must be a shell."""
    shebang = script.split("\n", 1)[0].rstrip("\r")
    if not shebang.startswith("#!"):
        return ["/bin/bash"]
    if not _SHELL.fullmatch(shebang):
        raise TryError(f"script: {shebang!r} is no shell: write a bash script that starts the program")
    return shebang[2:].split()


def _both(name: str, old_name: str, value: object) -> dict[str, str]:
    return {name: str(value), old_name: str(value)}


def _indices(count: int) -> str:
    return ",".join(map(str, range(count)))


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")
