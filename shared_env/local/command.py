"""What `shared-env try` does with its options."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shared_env.console import UNUSABLE, print_json, say
from shared_env.task import TaskError, load_task

from . import NeedsSlurm, Result, TryError, run_locally
from .report import as_json, as_table


def run_try(
    path: str,
    *,
    provider: str | None,
    num_nodes: int | None,
    gpus_per_node: int | None,
    timeout: float | None,
    overrides: Sequence[str],
    json: bool,
) -> int:
    """Run a task and tell the end; returns the exit status: the task's, 124, 128 + N, or 2 if it cannot be run here."""
    try:
        task = load_task(path, overrides=overrides)
        for problem in task.warnings:
            say(str(problem), "yellow")
        try:
            result = run_locally(
                task,
                provider=provider,
                num_nodes=num_nodes,
                gpus_per_node=gpus_per_node,
                timeout=timeout,
                fd=2 if json else 1,
                colour=_coloured(2 if json else 1),
                tell=_remark,
            )
        except NeedsSlurm as need:
            from .cluster import run_on_cluster

            settings = [word for text in overrides for word in ("--set", text)] + ["--json"] * json
            return run_on_cluster(
                task,
                str(need),
                num_nodes=num_nodes,
                gpus_per_node=gpus_per_node,
                timeout=timeout,
                arguments=settings,
                tell=_remark,
            )
    except (TaskError, TryError) as error:
        say(f"error: {error}", "bold red")
        return UNUSABLE
    _tell_end(result, json)
    return result.exit_status


def _tell_end(result: Result, json: bool) -> None:
    if json:
        print_json(as_json(result))
    else:
        say(as_table(result), "bold red" if result.exit_status else "green")


def _remark(text: str) -> None:
    say(text, "yellow")


def _coloured(fd: int) -> bool:
    return os.isatty(fd) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
