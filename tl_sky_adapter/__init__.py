"""A multi-node task for SkyPilot: the run command with the contract in front of it."""

from __future__ import annotations

__all__ = ["prefix_run"]


def prefix_run(run: str | None, num_nodes: int) -> str | None:
    """The run command of a SkyPilot task with the text in front that sets the six variables on every node.

    None, an empty text and single-node runs come back unchanged, and so does a run that has the prefix already. The
    exit status of the run is kept: the prefix ends in a newline and runs in the same shell.

    >>> prefix_run("python train.py", 1)
    'python train.py'
    """
    from shared_env.shell import sky_prefix  # noqa: PLC0415

    if not run or num_nodes <= 1:
        return run
    prefix = sky_prefix()
    return run if run.startswith(prefix) else prefix + run
