"""What `shared-env check` does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import click

from . import load_task
from .check import explain as page
from .console import FAILED, UNUSABLE, find, print_json, say, show_findings
from .task import TaskError


def run_check(tasks: Sequence[str], sbatch_flags: str | None, code: str | None, as_json: bool) -> int:
    """Check every task, or print the page of a rule; return the exit status."""
    if code is not None:
        try:
            click.echo(page(code).rstrip("\n"))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        return 0
    if not tasks:
        raise click.UsageError("name a task: shared-env check TASK.yaml")
    findings, unusable = [], False
    for path in tasks:
        try:
            task = load_task(path)
        except TaskError as error:
            say(str(error), "bold red")
            unusable = True
            continue
        for problem in task.warnings:
            say(str(problem), "yellow")
        findings += find(task, sbatch_flags=sbatch_flags)
    if as_json:
        print_json([finding.as_dict() for finding in findings])
    else:
        show_findings(findings)
        _summary(Counter(finding.severity for finding in findings), len(tasks))
    return UNUSABLE if unusable else FAILED if any(finding.severity == "error" for finding in findings) else 0


def _summary(found: Counter[str], tasks: int) -> None:
    if not sys.stderr.isatty() and not found:
        return
    counts = ", ".join(
        f"{found[name]} {name}{'s' * (found[name] != 1)}" for name in ("error", "warning") if found[name]
    )
    if counts:
        say(f"{counts}; shared-env check --explain CODE says more about a rule")
    else:
        say(f"{tasks} task{'s' * (tasks != 1)}: nothing found", "green")
