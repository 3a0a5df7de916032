"""The subcommands of `shared-env` other than `exec`, which is in cli.py because it must start fast."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from . import __version__
from .console import debug_option, print_json, run_command
from .contract import NAMES, EnvError, Rendezvous

_MEANING = {
    "MASTER_ADDR": "host of rank 0",
    "MASTER_PORT": "port on that host",
    "NODE_RANK": "number of this node",
    "RANK": "number of this process",
    "LOCAL_RANK": "number of this process on its node",
    "WORLD_SIZE": "number of processes",
}


@click.group(name="shared-env", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shared-env")
@debug_option
def group() -> None:
    """The six variables of a multi-node task: MASTER_ADDR, MASTER_PORT, NODE_RANK, RANK, LOCAL_RANK, WORLD_SIZE.

    \b
    Examples:
      srun shared-env exec -- python train.py
      srun shared-env show
    """


@group.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(as_json: bool) -> None:
    """Show the six values of this process, each with the variable that it comes from."""
    here = Rendezvous.from_environ()
    values = here.as_env()
    if as_json:
        print_json({"system": here.system, "values": values, "sources": here.sources})
        return
    width = max(len(values[name]) for name in NAMES)
    for name in NAMES:
        source = here.sources.get(name, "")
        click.echo(f"{name:<12} {values[name]:<{width}}  {_MEANING[name]}; from {source}")


@group.command(name="exec", context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(command: tuple[str, ...]) -> None:
    """Set the six variables for this process, then become COMMAND.

    The exit status is the command's; 126 and 127 mean that it could not be started, 1 that the values are not known.

    \b
    Examples:
      srun shared-env exec -- python train.py
      mpirun -np 8 shared-env exec -- python train.py
    """
    raise AssertionError("cli.main runs exec")


@group.command()
@click.argument("tasks", nargs=-1, type=click.Path(), metavar="TASK.yaml...")
@click.option("--sbatch-flags", help="The options of sbatch that will go with the tasks.")
@click.option("--explain", metavar="CODE", help="Print the page of a rule, such as MN101, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def check(tasks: tuple[str, ...], sbatch_flags: str | None, explain: str | None, as_json: bool) -> int:
    """Find the mistakes that would make tasks hang, before they start. Nothing is executed.

    Exits with 0 when no error was found (there may be warnings), 1 when one was, 2 when a task cannot be read. The
    comment "# multinode: ignore MN107" on a line silences that rule there.

    \b
    Examples:
      shared-env check task.yaml
      shared-env check --explain MN101
    """
    from .check_command import run_check

    return run_check(tasks, sbatch_flags, explain, as_json)


@group.command()
@click.option("--timeout", type=click.FloatRange(min=1), default=20.0, show_default=True, metavar="SECONDS",
              help="How long the processes wait for each other.")  # fmt: skip
@click.option("--export-hints", is_flag=True, help="Print the variables to set when an interface is to blame.")
@click.option("--json", "as_json", is_flag=True, help="Rank 0 prints one JSON object.")
def preflight(timeout: float, export_hints: bool, as_json: bool) -> int:
    """Test whether the processes of this job find each other. Run it as every process.

    Rank 0 prints a table and the faults by name; a process that cannot reach it says why. Exits with 1 on a fault.

    \b
    Examples:
      srun shared-env preflight
      srun shared-env preflight --timeout 60 --json
    """
    from . import preflight as test

    given = {name: value for name, value in os.environ.items() if value}
    values = {} if set(NAMES) <= set(given) else Rendezvous.from_environ().as_env()
    return test.run({**values, **given}, timeout, as_json, export_hints)


@group.command(name="try")
@click.argument("task", type=click.Path(), metavar="TASK.yaml")
@click.option("--nodes", "num_nodes", type=click.IntRange(1, 1000), metavar="N",
              help="Number of nodes instead of the task's.")  # fmt: skip
@click.option("--gpus-per-node", type=click.IntRange(0, 1024), metavar="N",
              help="GPUs of a node instead of the task's.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="End it after so long.")
@click.option("--provider", type=click.Choice(["slurm", "skypilot"]), help="Run it as on this system.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE",
              help="Change the task: resources.cpus=4, name=x; another KEY sets an env variable.")  # fmt: skip
@click.option("--json", is_flag=True, help="Print one JSON object at the end; the output goes to stderr.")
def try_(task: str, **options: Any) -> int:
    """Run a task as several nodes on this machine; no cluster is needed.

    Each node gets a loopback address, the variables of its system, and the text that the cluster would get. The first
    failure ends all nodes. The exit status is the task's; 2: it cannot be run here; 124: --timeout; 130: interrupted.

    \b
    Examples:
      shared-env try examples/hello-multinode.yaml
      shared-env try task.yaml --nodes 3 --gpus-per-node 2 --provider slurm
    """
    from .local.command import run_try

    return run_try(task, **options)


def run(argv: Sequence[str]) -> int:
    """Run a subcommand and return the exit status."""
    return run_command(group, (EnvError,), argv)
