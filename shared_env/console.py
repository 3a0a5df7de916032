"""What the command lines share: errors as one readable text, JSON, messages beside the output."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from shared_env.credentials import mask

if TYPE_CHECKING:
    from shared_env.check import Finding
    from shared_env.task import Task

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130


def say(text: str, style: str = "dim") -> None:
    """A message for a person, on stderr; coloured only on a terminal (and not with NO_COLOR)."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(text, style=style))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, stderr: bool = False) -> None:
    """A table without frames, as wide as it needs to be."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row))
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = 500
    console.print(table)


def show_findings(findings: Sequence[Finding], *, stderr: bool = False) -> None:
    """Findings for a person: place, severity, code and reason; the offending text; what to type instead."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    for finding in findings:
        style = "bold red" if finding.severity == "error" else "yellow"
        place = f"{finding.path or finding.key}:{finding.line or 1}:{finding.column or 1}: "
        console.print(Text.assemble(place, (f"{finding.severity} {finding.code}", style), f": {finding.message}"))
        console.print(Text.assemble("    ", (finding.text, "bold")))
        console.print(Text.assemble(("    fix: ", "green"), finding.fix.replace("\n", "\n         ")))


def find(task: Task, *, sbatch_flags: str | None = None) -> list[Finding]:
    """What the linter finds in a task; what is too large for it is named on stderr."""
    from .check import inspect

    findings, unread = inspect(task, sbatch_flags=sbatch_flags)
    for key in unread:
        say(f"{task.source or 'the task'}: the {key} is too large to be checked", "yellow")
    return findings


def passes_check(task: Task, *, sbatch_flags: str | None = None) -> bool:
    """Whether the linter finds no error in a task; what it finds, warnings too, is shown on stderr."""
    findings = find(task, sbatch_flags=sbatch_flags)
    show_findings(findings, stderr=True)
    return not any(finding.severity == "error" for finding in findings)


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def run_command(
    command: click.Command, expected: tuple[type[Exception], ...], argv: Sequence[str] | None = None
) -> int:
    """Run a click command and turn its end into an exit status.

    0: done. 1: an error in `expected`, printed as one text without a traceback. 2: wrong usage. 130: interrupted.
    With SHARED_ENV_DEBUG=1 (or --debug) an error keeps its traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    if debug:
        arguments.remove("--debug")
    try:
        result = command.main(arguments, prog_name=command.name, standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        error.message = mask(error.message)  # type: ignore[misc]
        error.show()
        return UNUSABLE
    except click.ClickException as error:
        error.show()
        return FAILED
    except (click.Abort, KeyboardInterrupt) as end:
        if text := str(end.__cause__ or end):
            say(text, "bold red")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (| head): no error, and nothing more to flush at the end.
        sys.stdout = None
        return FAILED
    except expected as error:
        text = "".join(traceback.format_exception(error)).rstrip("\n") if debug else f"error: {error}"
        say(mask(text), "bold red")
        return FAILED
    return result if isinstance(result, int) else 0


def debug_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The --debug option, for the help text: `run_command` takes it out of the arguments itself."""
    return click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")(function)
