"""The text in front of a SkyPilot run command. Needs no SkyPilot."""

from __future__ import annotations

from typing import overload

from shared_env.shell import sky_prefix


@overload
def prefix_run(run: str, num_nodes: int, *, launch: str = "script") -> str: ...
@overload
def prefix_run(run: None, num_nodes: int, *, launch: str = "script") -> None: ...
def prefix_run(run: str | None, num_nodes: int, *, launch: str = "script") -> str | None:
    r"""The run command of a SkyPilot task with the text in front that sets the six variables on every node.

    The prefix gives defaults only: what `envs` sets stays. It runs in the shell of the run command, ends in a newline,
    and leaves no shell option or exit status behind. SkyPilot starts `run` once on every node, so RANK is the node's
    rank; MASTER_PORT is 29500, the same for all jobs of a cluster, and MASTER_PORT=auto gives each job its own.

    Args:
        run: the command. None, an empty text, and a run that has the prefix already come back unchanged.
        num_nodes: nodes of the task; with one node the command comes back unchanged.
        launch: "per-node" adds defaults of torchrun's options (PET_*), so that `torchrun train.py` is complete.

    Raises:
        TypeError: run is no text.
        ValueError: launch is neither "script" nor "per-node".

    >>> prefix_run("python train.py", 1)
    'python train.py'
    >>> text = prefix_run("python train.py", 2)
    >>> text.endswith("\npython train.py") and prefix_run(text, 2) == text
    True
    """
    if launch not in ("script", "per-node"):
        raise ValueError(f"launch must be 'script' or 'per-node', not {launch!r}")
    if not run or num_nodes <= 1:
        return run
    if not isinstance(run, str):
        raise TypeError(
            f"run must be the text of a command, not {type(run).__name__}: "
            "join a list with newlines; write what a function would return as shell text"
        )
    prefix = sky_prefix(per_node=launch == "per-node")
    mark = prefix[: prefix.index("\n")]
    return run if run.lstrip().startswith(mark) else prefix + run
