"""The six rendezvous variables of a multi-node task: computed, checked, and the same everywhere."""

from __future__ import annotations

from .contract import EnvError, Rendezvous, derive_port
from .hostlist import expand_nodelist, expand_task_counts, first_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .check import Finding, check
    from .task import Task, TaskError, load_task

__version__ = "0.1.0"
__all__ = [
    "EnvError",
    "Finding",
    "Rendezvous",
    "Task",
    "TaskError",
    "check",
    "derive_port",
    "expand_nodelist",
    "expand_task_counts",
    "first_host",
    "load_task",
]


def __getattr__(name: str) -> object:
    """Load what needs third-party packages (task.yaml, the linter) when it is first asked for."""
    # `from . import check` would ask this function again; the subpackage is asked for its names instead.
    if name in ("Task", "TaskError", "load_task"):
        from .task import Task, TaskError, load_task

        globals().update(Task=Task, TaskError=TaskError, load_task=load_task)
    elif name in ("Finding", "check"):
        from .check import Finding, check

        globals().update(Finding=Finding, check=check)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = globals()[name]
    return value
