"""What every way to submit shares: the error, what a failure means, and the environment that goes along."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from shared_env.inherit import without_launchers

from .jobs import one_line
from .slurm_errno import FULL, UNANSWERED, UNREACHABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_PYSLURM: Final = "pyslurm is not installed"
LOOK_FIRST: Final = "before you submit it again, look with: squeue --me"
_HINTS = (
    (UNREACHABLE, "nothing was submitted; to see whether the controller runs, type: scontrol ping"),
    (FULL, "nothing was submitted; when jobs have ended (squeue), submit it again"),
    (
        re.compile("I/O error writing script"),
        "the disk of Slurm's controller is full or broken: tell the administrator (df, at StateSaveLocation)",
    ),
)
_LOGIN_NAMES = frozenset(("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "SLURM_CONF"))


class SubmitError(RuntimeError):
    """Slurm did not take the job, or did not say so.

    Attributes:
        stderr: the words of Slurm as they came.
        transient: there is no job, and the same request may succeed later.
        unknown: the request may have reached Slurm, but no answer came back: there may be a job.
    """

    def __init__(self, message: str, stderr: str = "", *, transient: bool = False, unknown: bool = False) -> None:
        super().__init__(message)
        self.stderr = stderr
        self.transient = transient
        self.unknown = unknown


def failure(stderr: str, *, sent: bool = True) -> SubmitError:
    """The error for what Slurm said instead of a job id.

    Args:
        stderr: the words of Slurm.
        sent: whether the request itself can have been sent when this happened.

    >>> lost = failure("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    >>> lost.unknown, lost.transient
    (True, False)
    >>> failure("sbatch: error: Batch job submission failed: Invalid qos specification")
    SubmitError('Slurm did not take the job: Batch job submission failed: Invalid qos specification')
    """
    words = one_line(stderr)
    unanswered = UNANSWERED.search(stderr) is not None
    if unanswered and sent:
        return unknown(words, stderr)
    transient = unanswered or any(pattern.search(stderr) for pattern in (UNREACHABLE, FULL))
    hint = "".join(f"; {text}" for pattern, text in _HINTS if pattern.search(stderr))
    return SubmitError(f"Slurm did not take the job: {words}{hint}", stderr, transient=transient)


def unknown(words: str, stderr: str = "") -> SubmitError:
    """The error for a request that may have become a job."""
    return SubmitError(f"it is not known whether Slurm took the job: {words}; {LOOK_FIRST}", stderr, unknown=True)


def submission_environment(inherit: bool = True, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment that the client, and through it the job, gets.

    Args:
        inherit: the caller's environment without what belongs to another job or launcher; SLURM_CONF stays, since
            it says which cluster is meant. Otherwise the few variables of a login.
        environ: the caller's environment; `os.environ` when left out.
    """
    source = os.environ if environ is None else environ
    if inherit:
        return without_launchers(source)
    return {name: value for name, value in source.items() if name in _LOGIN_NAMES or name.startswith("LC_")}
