"""A multi-node task -> a batch script -> a Slurm job."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .jobs import Job, JobError, JobStatus
    from .rest import newest_api_version, parse_rest_response, rest_payload
    from .script import BatchRequest, RequestError, render_batch_script
    from .submit import SubmitError, TestResult, parse_sbatch_output, sbatch_command, submit, test_only

__all__ = [
    "BatchRequest",
    "Job",
    "JobError",
    "JobStatus",
    "RequestError",
    "SubmitError",
    "TestResult",
    "newest_api_version",
    "parse_rest_response",
    "parse_sbatch_output",
    "render_batch_script",
    "rest_payload",
    "sbatch_command",
    "submit",
    "test_only",
]
_HOMES = {
    "jobs": ("Job", "JobError", "JobStatus"),
    "rest": ("newest_api_version", "parse_rest_response", "rest_payload"),
    "script": ("BatchRequest", "RequestError", "render_batch_script"),
    "submit": ("SubmitError", "TestResult", "parse_sbatch_output", "sbatch_command", "submit", "test_only"),
}


def __getattr__(name: str) -> object:
    """Load a module when one of its names is first asked for, so that the import of the package costs nothing."""
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            module = import_module(f"{__name__}.{home}")
            # `submit` is the function, not the module of that name.
            globals().update((each, getattr(module, each)) for each in names)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
