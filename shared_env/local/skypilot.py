"""A task as SkyPilot runs it: setup on every node, then the prefix and the script on every node at the same time.

Source: SkyPilot's documentation, "Environment variables", and the job scripts that it writes: an interactive bash
(`bash -i`) without a terminal reads each script, so `!` expands, SIGTERM is ignored and `${X:?}` does not end it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from shared_env.shell import sky_prefix

from .machine import Node, TryError, why_not_free
from .processes import Process, Processes

if TYPE_CHECKING:
    from shared_env.task import Task

_PORTS_TO_TRY = 50


class SkyRun:
    """One run of a task."""

    def __init__(self, task: Task, nodes: list[Node], gpus: int, environ: Mapping[str, str], cwd: str) -> None:
        self.task = task
        self.nodes = nodes
        self.gpus = gpus
        self.cwd = cwd
        self.base = {**environ, "PYTHONUNBUFFERED": "1", **task.env, **task.secrets}
        self.prefix = sky_prefix(per_node=task.launch == "per-node") if len(nodes) > 1 else ""
        self.task_id = self._find_task_id() if self.prefix else _task_id(0)

    def environment(self, node: Node) -> dict[str, str]:
        """What the run command of a node finds."""
        env = {
            **self.base,
            "SKYPILOT_NODE_RANK": str(node.index),
            "SKYPILOT_NODE_IPS": self._ips,
            "SKYPILOT_NUM_NODES": str(len(self.nodes)),
            "SKYPILOT_NUM_GPUS_PER_NODE": str(self.gpus),
            "SKYPILOT_TASK_ID": self.task_id,
        }
        return {**env, "CUDA_VISIBLE_DEVICES": node.devices} if self.gpus else env

    def setup_environment(self, node: Node) -> dict[str, str]:
        """What the setup of a node finds: the nodes have not met yet."""
        return {
            **self.base,
            "SKYPILOT_SETUP_NODE_RANK": str(node.index),
            "SKYPILOT_SETUP_NODE_IPS": self._ips,
            "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": str(self.gpus),
            "SKYPILOT_NUM_NODES": str(len(self.nodes)),
        }

    def run(self, processes: Processes) -> dict[int, Process]:
        """Run it; the processes by node number."""
        started: dict[int, Process] = {}
        for node in self.nodes if self.task.setup else ():
            # One after the other: on this machine they all change the same directories.
            argv = _bash(processes.files / "setup", self.task.setup or "")
            setup = started[node.index] = processes.start(
                node.name, argv, self.setup_environment(node), self.cwd, is_setup=True
            )
            processes.wait(lambda setup=setup: setup.exit_status is not None)  # type: ignore[misc]
            if processes.ended_by:
                return started
        argv = _bash(processes.files / "run", self.prefix + (self.task.script or ""))
        for node in self.nodes:
            started[node.index] = processes.start(node.name, argv, self.environment(node), self.cwd)
        processes.wait(lambda: all(process.exit_status is not None for process in started.values()))
        return started

    @property
    def _ips(self) -> str:
        return "\n".join(node.address for node in self.nodes)

    def _find_task_id(self) -> str:
        """A task id under which MASTER_PORT is free here; it plays a role for `MASTER_PORT: auto` only."""
        port, why = 0, ""
        for number in range(_PORTS_TO_TRY):
            self.task_id = _task_id(number)
            if "MASTER_ADDR" in self.base:
                break  # maybe another machine
            port = self._port()
            why = why_not_free(port)
            if not why or self.base.get("MASTER_PORT") != "auto":
                break
        if why:
            raise TryError(
                f"MASTER_PORT would be {port}, but on this machine: {why}; end what listens there (ss -ltnp), or take "
                "another port for this run: --set MASTER_PORT=29501"
            )
        return self.task_id

    def _port(self) -> int:
        """What the prefix makes of MASTER_PORT."""
        text = f'{self.prefix}\nprintf "%s" "$MASTER_PORT"'
        done = subprocess.run(["sh", "-c", text], env=self.environment(self.nodes[0]), capture_output=True, text=True)
        if done.returncode or not done.stdout.isdigit() or not 0 < int(done.stdout) < 65536:
            raise TryError(done.stderr.strip() or f"MASTER_PORT={done.stdout!r} is not a port: give 1024 to 65535")
        return int(done.stdout)


def _task_id(number: int) -> str:
    return f"sky-{datetime.now():%Y-%m-%d-%H-%M-%S-%f}_try_{number + 1}"


def _bash(path: Path, text: str) -> list[str]:
    # An interactive bash without a terminal begins with two complaints: they go to /dev/null. No start-up files: they
    # are those of this machine, not of a node. No history: it would be added to the user's.
    head = "exec 2>&3 3>&-; declare +x HISTFILE\n"
    path.write_text(head + text, encoding="utf-8", errors="surrogateescape")
    return ["sh", "-c", 'HISTFILE=/dev/null exec bash --norc -i "$0" 3>&2 2> /dev/null', str(path)]
