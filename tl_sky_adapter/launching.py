"""SkyPilot's own launch and exec, with the contract in the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from .prefix import prefix_run
from .task import import_sky

if TYPE_CHECKING:
    import sky

    TaskOrDag = TypeVar("TaskOrDag", sky.Task, sky.Dag)


def apply(task: TaskOrDag) -> TaskOrDag:
    """Put the prefix in front of the run command of a sky.Task, or of each task of a sky.Dag; return the same object.

    Single-node tasks, services, and tasks without a run command stay as they are; a second time changes nothing.

    Raises:
        TypeError: run is a function, which SkyPilot cannot send to a cluster.
    """
    for each in getattr(task, "tasks", [task]):
        if each.service is None:
            each.run = prefix_run(each.run, each.num_nodes)
    return task


def launch(task: TaskOrDag, cluster_name: str | None = None, **kwargs: Any) -> Any:
    """`sky.launch` of a task with the contract: the same keyword arguments, return value, and exceptions."""
    return import_sky().launch(apply(task), cluster_name=cluster_name, **kwargs)


def exec(task: TaskOrDag, cluster_name: str | None = None, **kwargs: Any) -> Any:
    """`sky.exec` of a task with the contract: the same keyword arguments, return value, and exceptions."""
    return import_sky().exec(apply(task), cluster_name=cluster_name, **kwargs)
