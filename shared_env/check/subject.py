"""A task as the rules see it, and the questions that several of them ask."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from .layout import SUB_STEP, Directive, Layout, directives, srun_layout
from .programs import PYTHON, Start, python_target, start_of
from .walk import analyse

if TYPE_CHECKING:
    from shared_env.task import Task

    from .commands import Command, Script

HELPER_MODULES = ("pip", "venv", "ensurepip", "json", "http", "site", "zipfile", "compileall", "py_compile", "nltk")
HELPER_FILES = re.compile(r"launch|submit|prepare|prep_|download|setup|convert|preprocess|tokeniz|eval", re.IGNORECASE)


class Subject:
    """One task under inspection."""

    def __init__(self, task: Task, sbatch_flags: str | None = None) -> None:
        self.task = task
        self.nodes = task.num_nodes
        self.slurm = task.provider == "slurm"
        self.sky = task.provider == "skypilot"
        self.per_node = task.launch == "per-node"
        self.sbatch_flags = sbatch_flags or ""
        self.env: dict[str, str] = dict(task.env)

    @property
    def multi(self) -> bool:
        """More than one node: the only case in which most rules apply."""
        return self.nodes > 1

    @property
    def batch(self) -> bool:
        """The script runs once, in the batch shell on the first node."""
        return self.slurm and not self.per_node

    @property
    def every_node(self) -> bool:
        """The script runs once on every node."""
        return self.sky or self.per_node

    @cached_property
    def script(self) -> Script:
        """The analysed ``script``."""
        return analyse(self.task.script or "")

    @cached_property
    def setup(self) -> Script:
        """The analysed ``setup``."""
        return analyse(self.task.setup or "")

    @cached_property
    def directives(self) -> list[Directive]:
        """The sbatch options of the script's head and of the flags."""
        return directives(self.script, self.sbatch_flags) if self.slurm else []

    @cached_property
    def job(self) -> Layout:
        """The layout that the sbatch options ask for."""
        return Layout(tuple(directive.option for directive in self.directives))

    @cached_property
    def gpus(self) -> int | None:
        """GPUs of one node, if the task says so in one way only."""
        match = (
            re.fullmatch(r"[^:]+:(\d+)", self.task.accelerators) if isinstance(self.task.accelerators, str) else None
        )
        return int(match[1]) if match else self.job.gpus_per_node

    @cached_property
    def starts(self) -> list[tuple[Command, Start]]:
        """Every torchrun, accelerate launch and deepspeed command of the script."""
        found = [(command, start_of(command.words)) for command in self.script.commands]
        return [(command, start) for command, start in found if start is not None]

    @cached_property
    def plain_python(self) -> list[Command]:
        """Commands that start a python program without a launcher, helpers such as ``python -m pip`` left out."""
        found = []
        for command in self.script.commands:
            if not PYTHON.match(command.name) or start_of(command.words) is not None:
                continue
            target, _ = python_target(command.words)
            helper = target in ("", "-c", "-") or target.startswith(tuple(f"-m {name}" for name in HELPER_MODULES))
            if not helper and not HELPER_FILES.search(target) and not command.scope.substitution:
                found.append(command)
        return found

    def is_sub_step(self, launcher: Command | None) -> bool:
        """An srun that is meant for a part of the allocation: one task, fewer nodes, chosen nodes."""
        if launcher is None or launcher.name != "srun":
            return False
        if launcher.scope.launcher is not None:  # srun inside srun: not ours to judge
            return True
        step = srun_layout(launcher)
        fewer = step.nodes is not None and step.nodes[1] < self.nodes
        return fewer or step.number("ntasks") == 1 or any(step.given(name) for name in SUB_STEP)

    def everywhere(self, launcher: Command | None) -> bool:
        """What ``launcher`` starts (None: the script itself) runs on all nodes at the same time."""
        if launcher is None:
            return self.every_node
        return self.batch and not self.is_sub_step(launcher)

    def expected_nodes(self, launcher: Command | None) -> int | None:
        """The nodes that a program started by ``launcher`` may count on; None when that cannot be known."""
        if launcher is not None and launcher.name == "srun":
            step = srun_layout(launcher)
            if step.nodes is not None:
                return step.nodes[0] if step.nodes[0] == step.nodes[1] else None
            if step.given("nodes") is not None or self.is_sub_step(launcher):
                return None
        return self.nodes
