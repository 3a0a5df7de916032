"""Give a request to Slurm, through pyslurm or sbatch: one call makes one job or an error, and never two jobs."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import cluster
from .arrival import Search, marked
from .client import LOOK_FIRST, SubmitError, failure, submission_environment, unknown
from .jobs import Job, one_line
from .options import OptionError
from .sbatch import repeats, sbatch
from .sbatch import submit as submit_by_sbatch
from .script import BatchRequest, RequestError
from .slurm_errno import NO_ANSWER, UNREACHABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Unpack

    from .script import RequestFields

BACKENDS = ("auto", "pyslurm", "sbatch")
ATTEMPTS, PAUSE = 3, 5.0  # how often, and after how many seconds, a request is sent while Slurm takes none


@dataclass(frozen=True)
class TestResult:
    """What `sbatch --test-only` says: accepted or not, when it would start (local time), on which nodes, and why."""

    __test__ = False  # no test class

    accepted: bool
    message: str
    start: str = ""
    nodes: str = ""
    partition: str = ""


def submit(
    run: str,
    *,
    backend: str = "auto",
    inherit_environment: bool = True,
    on_retry: Callable[[str], object] | None = None,
    **request: Unpack[RequestFields],
) -> Job:
    """Submit a multi-node task; the arguments are those of `render_batch_script`.

    There is one job when this returns, and never a second one. A request that found no controller, or no room for a
    job, is sent again, ATTEMPTS times in all. One that was sent but not answered is looked for, for a minute; it is
    sent again only when the controller was started since and has no such job. What is sent is the rendered script
    with a random comment in place of the empty line after its header, by which the job is found.

    Args:
        run: the script of the task.
        backend: "sbatch", "pyslurm", or "auto": pyslurm where it is installed, works, and can say all that is asked
            for, else sbatch; the `note` of the Job then says why.
        inherit_environment: give the caller's environment to the job, without what belongs to another job (SLURM_*,
            the six rendezvous variables ...); otherwise only PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_*, TERM.
        on_retry: called with one sentence before each wait, for a person who looks at a terminal.
        **request: see `render_batch_script`.

    Raises:
        ValueError: an argument is not usable; nothing was submitted.
        SubmitError: Slurm refused it, in Slurm's words; `transient` and `unknown` say what became of the request.
        KeyboardInterrupt: its text says whether there is a job.
    """
    return submit_request(
        BatchRequest(run, **request), backend=backend, inherit_environment=inherit_environment, on_retry=on_retry
    )


def submit_request(
    request: BatchRequest,
    *,
    backend: str = "auto",
    inherit_environment: bool = True,
    on_retry: Callable[[str], object] | None = None,
) -> Job:
    """Submit a request: see `submit`."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    environ = submission_environment(inherit_environment)
    request = for_cluster(request, environ)
    _check_size(request, environ)
    tell = on_retry or (lambda _: None)
    note = ""
    if backend != "sbatch":
        from . import pyslurm_backend

        def submit_by_pyslurm(script: str) -> str:
            return pyslurm_backend.submit(request, script, environ)

        try:
            return Job(_once(submit_by_pyslurm, request, environ, tell), backend="pyslurm", environ=environ)
        except (pyslurm_backend.UnusableError, OptionError) as error:
            if backend == "pyslurm":
                raise error if isinstance(error, OptionError) else SubmitError(str(error)) from None
            note = f"sbatch was used: {error}"
    job_id = _once(lambda script: submit_by_sbatch(script, environ, tell), request, environ, tell)
    return Job(job_id, backend="sbatch", note=note, environ=environ)


def _once(
    send: Callable[[str], str], request: BatchRequest, environ: Mapping[str, str], tell: Callable[[str], object]
) -> str:
    """Send a request until it is one job, or sure to be none."""
    token = os.urandom(8).hex()
    script, search = marked(str(request), token), Search(token, environ)
    elsewhere = any(option.name == "clusters" for option in request.options)
    sent = False
    try:
        for attempt in range(1, ATTEMPTS + 1):
            sent = True
            try:
                return send(script)
            except SubmitError as error:
                if error.unknown:
                    if elsewhere:
                        raise
                    words = error.stderr or NO_ANSWER
                    if found := _look(words, search, tell):
                        return found
                    error = failure(words, sent=False)
                # sbatch has waited two minutes for room before it says that there is none
                waited = repeats(error.stderr) and not UNREACHABLE.search(error.stderr)
                if attempt == ATTEMPTS or not error.transient or waited:
                    raise error from None
            sent = False
            tell(f"Slurm's controller takes no job now; trying again in {PAUSE:g} s ({attempt + 1} of {ATTEMPTS})")
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_interrupted(search, tell) if sent else "interrupted; nothing was submitted") from None
    raise AssertionError


def _look(words: str, search: Search, tell: Callable[[str], object]) -> str | None:
    """The id of the job that an unanswered request became; None when it is sure that there is none."""
    tell("Slurm's controller did not answer; looking whether the job arrived, for a minute at most")
    try:
        return search.until_sure()
    except TimeoutError:
        raise unknown(f"{one_line(words)}, and no such job came up within a minute", words) from None


def _interrupted(search: Search, tell: Callable[[str], object]) -> str:
    with contextlib.suppress(KeyboardInterrupt):
        tell("interrupted; asking Slurm whether there is a job already")
        for pause in (0, 1):  # a request that has just come in may not be a job at the first look
            time.sleep(pause)
            answered, found = search.once()
            if found:
                return f"job {found} was submitted before the interrupt; to stop it, type: tl-slurm cancel {found}"
            if not answered:
                break
    return f"interrupted; there may be a job: {LOOK_FIRST}"


def test_only(run: str, *, inherit_environment: bool = True, **request: Unpack[RequestFields]) -> TestResult:
    """Ask Slurm whether it would take the task, and when it would start; nothing is submitted.

    Raises:
        ValueError: an argument is not usable.
        SubmitError: Slurm cannot be asked.
    """
    return test_request(BatchRequest(run, **request), inherit_environment=inherit_environment)


test_only.__test__ = False  # type: ignore[attr-defined]


def test_request(request: BatchRequest, *, inherit_environment: bool = True) -> TestResult:
    """Ask about a request: see `test_only`."""
    environ = submission_environment(inherit_environment)
    try:
        script = str(for_cluster(request, environ))
    except RequestError as error:
        return TestResult(False, str(error))
    done = sbatch(script, environ, "--test-only")
    message = one_line(done.stderr)
    found = re.search(r"to start at (\S+) (?:a )?using .* on nodes (\S+)(?: in partition (\S+))?", done.stderr)
    if done.returncode or not found:
        if (lost := failure(done.stderr)).transient or lost.unknown:
            raise SubmitError(f"Slurm cannot be asked: {message}", done.stderr, transient=True)
        return TestResult(False, message or f"sbatch --test-only ended with status {done.returncode}")
    return TestResult(True, message, found[1], found[2], found[3] or "")


test_request.__test__ = False  # type: ignore[attr-defined]


def for_cluster(request: BatchRequest, environ: Mapping[str, str]) -> BatchRequest:
    """The request with the cluster's own spelling of its GPU type, where it asks for GPUs and Slurm answers.

    Raises:
        RequestError: the cluster has no such type; the message lists what it has.
    """
    if not request.accelerators:
        return request
    found = cluster.partition(environ, request.partition_asked)
    return request.with_gpu_types(found.gpu_types if found else None)


def _check_size(request: BatchRequest, environ: dict[str, str]) -> None:
    """Refuse what can never start. Slurm queues it for ever unless EnforcePartLimits is set (slurm.conf(5))."""
    if request.nodes == 1 or any(option.name == "clusters" for option in request.options):
        return
    found = cluster.partition(environ, request.partition_asked)
    if found is None or request.nodes <= found.nodes:
        return
    words = one_line(sbatch(str(request), environ, "--test-only").stderr)
    raise SubmitError(f"num_nodes is {request.nodes}, but the partition has {found.nodes} nodes: {words}", words)
