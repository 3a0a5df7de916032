"""The subcommands of `shared-env` other than `exec`, which is in cli.py because it must start fast."""

from __future__ import annotations

from collections.abc import Sequence

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
    """The six rendezvous variables of a multi-node task: MASTER_ADDR, MASTER_PORT, NODE_RANK, RANK, LOCAL_RANK, WORLD_SIZE.

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


def run(argv: Sequence[str]) -> int:
    """Run a subcommand and return the exit status."""
    return run_command(group, (EnvError,), argv)
