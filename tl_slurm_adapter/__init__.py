"""A multi-node task -> a batch script -> a Slurm job."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .client import SubmitError
    from .jobs import Job, JobError, JobStatus
    from .rest import newest_api_version, parse_rest_response, rest_payload
    from .sbatch import parse_sbatch_output, sbatch_command
    from .script import BatchRequest, RequestError, render_batch_script
    from .submission import TestResult, submit, test_only

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
    "client": ("SubmitError",),
    "jobs": ("Job", "JobError", "JobStatus"),
    "rest": ("newest_api_version", "parse_rest_response", "rest_payload"),
    "sbatch": ("parse_sbatch_output", "sbatch_command"),
    "script": ("BatchRequest", "RequestError", "render_batch_script"),
    "submission": ("TestResult", "submit", "test_only"),
}


def __getattr__(name: str) -> object:
    """Load a module when one of its names is first asked for, so that the import of the package costs nothing."""
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
