"""A multi-node task -> a sky.Task -> sky.launch. SkyPilot is imported when a name that needs it is first asked for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .launching import apply, exec, launch
    from .policy import MultiNodePolicy
    from .prefix import prefix_run
    from .task import SkyTaskError, sky_config, to_sky_task

__all__ = [
    "MultiNodePolicy",
    "SkyTaskError",
    "apply",
    "exec",
    "launch",
    "prefix_run",
    "sky_config",
    "to_sky_task",
]
_HOMES = {
    "launching": ("apply", "exec", "launch"),
    "policy": ("MultiNodePolicy",),
    "prefix": ("prefix_run",),
    "task": ("SkyTaskError", "sky_config", "to_sky_task"),
}


def __getattr__(name: str) -> object:
    """Load a module when one of its names is first asked for."""
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
