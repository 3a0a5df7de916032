"""task.yaml -> SkyPilot's YAML and sky.Task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .prefix import prefix_run

if TYPE_CHECKING:
    import sky

    from shared_env.task import Task


class SkyTaskError(ValueError):
    """A task that cannot become a SkyPilot task; nothing was launched."""


def sky_config(task: Task) -> dict[str, Any]:
    """A task in the keys of SkyPilot's YAML, with the prefix; plain `sky launch` accepts it.

    Every key of `resources` that is not ours goes to SkyPilot as it is. `resources.port: auto` becomes
    MASTER_PORT=auto, unless `env` gives a MASTER_PORT.

    Args:
        task: from `shared_env.load_task`.

    Raises:
        SkyTaskError: the task is for another provider, or has something that SkyPilot cannot take.

    >>> from shared_env import load_task
    >>> task = load_task({"resources": {"num_nodes": 2, "cpus": "8+", "use_spot": True}, "script": "torchrun train.py"})
    >>> config = sky_config(task)
    >>> config["num_nodes"], config["resources"]
    (2, {'use_spot': True, 'cpus': '8+'})
    """
    if task.provider not in (None, "skypilot"):
        raise SkyTaskError(
            f"resources.provider is {task.provider!r}: {_instead(task.provider, task.num_nodes)}; "
            "set resources.provider: skypilot to run it on SkyPilot"
        )
    if isinstance(task.file_mounts, bool):
        raise SkyTaskError(
            f"file_mounts: {str(task.file_mounts).lower()} means nothing to SkyPilot: "
            "write a mapping (/path/on/node: source, one a line), or remove the line"
        )
    resources, envs = dict(task.extra), dict(task.env)
    if resources.get("port") == "auto":
        del resources["port"]
        envs.setdefault("MASTER_PORT", "auto")
    resources |= {"accelerators": task.accelerators, "cpus": task.cpus, "memory": task.memory}
    config = {
        "name": task.name,
        "num_nodes": task.num_nodes,
        "resources": {key: value for key, value in resources.items() if value is not None},
        "envs": envs,
        "secrets": dict(task.secrets),
        "workdir": task.workdir,
        "file_mounts": task.file_mounts,
        "setup": task.setup,
        "run": prefix_run(task.script, task.num_nodes, launch=task.launch) if task.script else task.script,
    }
    return {key: value for key, value in config.items() if value is not None and value != {}}


def to_sky_task(task: Task) -> sky.Task:
    """The sky.Task of a task.yaml.

    Raises:
        SkyTaskError: see `sky_config`.
        Exception: SkyPilot's own errors, such as an unknown key of `resources`.
    """
    return import_sky().Task.from_yaml_config(sky_config(task))


def import_sky() -> Any:
    """The module sky, imported now.

    Raises:
        ImportError: SkyPilot is not installed here; the message says how to get it.
    """
    try:
        import sky
    except ModuleNotFoundError as error:
        if error.name != "sky":
            raise
        raise ImportError("SkyPilot is not installed here; type: pip install 'tl-multinode[sky]'", name="sky") from None
    return sky


def _instead(provider: str, num_nodes: int) -> str:
    if provider == "slurm":
        return "submit it with tl-slurm"
    several = f" with num_nodes: {num_nodes}" if num_nodes > 1 else ""
    return f"only slurm and skypilot run several nodes; this provider cannot run it{several}"
