"""Give a batch script to Slurm: sbatch on this machine, or one command line for a remote shell."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared_env.inherit import without_launchers

from . import cluster
from .jobs import Job, one_line
from .options import OptionError
from .script import BatchRequest, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from .script import RequestFields

BACKENDS = ("auto", "pyslurm", "sbatch")
NO_PYSLURM = "pyslurm is not installed"
_LOGIN_NAMES = frozenset(("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "SLURM_CONF"))


class SubmitError(RuntimeError):
    """Slurm did not take the job.

    Attributes:
        stderr: the words of Slurm as they came.
    """

    def __init__(self, message: str, stderr: str = "") -> None:
        super().__init__(message)
        self.stderr = stderr


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
    run: str, *, backend: str = "auto", inherit_environment: bool = True, **request: Unpack[RequestFields]
) -> Job:
    """Submit a multi-node task; the arguments are those of `render_batch_script`.

    Args:
        run: the script of the task.
        backend: "sbatch", "pyslurm", or "auto": pyslurm where it is installed, works, and can say all that is asked
            for, else sbatch; the `note` of the Job then says why.
        inherit_environment: give the caller's environment to the job, without what belongs to another job (SLURM_*,
            the six rendezvous variables ...); otherwise only PATH, HOME, USER, LOGNAME, SHELL, LANG, LC_*, TERM.
        **request: see `render_batch_script`.

    Raises:
        ValueError: an argument is not usable; nothing was submitted.
        SubmitError: Slurm refused it, in Slurm's words.
    """
    return submit_request(BatchRequest(run, **request), backend=backend, inherit_environment=inherit_environment)


def submit_request(request: BatchRequest, *, backend: str = "auto", inherit_environment: bool = True) -> Job:
    """Submit a request: see `submit`."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    environ = submission_environment(inherit_environment)
    request = for_cluster(request, environ)
    _check_size(request, environ)
    note = ""
    if backend != "sbatch":
        from . import pyslurm_backend

        try:
            return Job(pyslurm_backend.submit(request, environ), backend="pyslurm", environ=environ)
        except (pyslurm_backend.UnusableError, OptionError) as error:
            if backend == "pyslurm":
                raise error if isinstance(error, OptionError) else SubmitError(str(error)) from None
            note = f"sbatch was used: {error}"
    done = _sbatch(str(request), environ)
    job_id = parse_sbatch_output(done.stdout, done.stderr)
    return Job(job_id, backend="sbatch", note=note, environ=environ)


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
    done = _sbatch(script, environ, "--test-only")
    message = one_line(done.stderr)
    found = re.search(r"to start at (\S+) (?:a )?using .* on nodes (\S+)(?: in partition (\S+))?", done.stderr)
    if done.returncode or not found:
        if "Unable to contact" in done.stderr:
            raise SubmitError(message, done.stderr)
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
    words = one_line(_sbatch(str(request), environ, "--test-only").stderr)
    raise SubmitError(f"num_nodes is {request.nodes}, but the partition has {found.nodes} nodes: {words}", words)


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


def sbatch_command(script: str) -> str:
    """One command line that submits `script` in a remote shell: on standard input, nothing is left behind there.

    >>> lines = sbatch_command("#!/bin/sh\\ntrue\\n").splitlines()
    >>> lines[0] == f"sbatch --parsable <<'{lines[-1]}'", lines[1:-1]
    (True, ['#!/bin/sh', 'true'])
    """
    delimiter = "TL_MULTINODE_" + hashlib.sha256(script.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    while delimiter in script:
        delimiter += "_"
    end = "" if script.endswith("\n") else "\n"
    return f"sbatch --parsable <<'{delimiter}'\n{script}{end}{delimiter}"


def parse_sbatch_output(stdout: str, stderr: str = "") -> str:
    """The job id in the output of sbatch, with or without --parsable.

    Raises:
        SubmitError: there is none; the message has Slurm's words.

    >>> parse_sbatch_output("Submitted batch job 42 on cluster c1"), parse_sbatch_output("43;c1")
    ('42', '43')
    """
    for line in reversed(stdout.splitlines()):
        found = re.fullmatch(r"\s*(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?\s*", line)
        if found:
            return found[1]
    words = one_line(stderr) or one_line(stdout)
    raise SubmitError(f"Slurm did not take the job: {words}" if words else "sbatch printed no job id", stderr or stdout)


def _sbatch(script: str, environ: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", *options],
            input=script.encode("utf-8", "surrogateescape"),
            capture_output=True,
            env=environ,
        )
    except FileNotFoundError:
        raise SubmitError(
            "sbatch is not installed here: run this on a login node of the cluster, or render the script and submit "
            "it there (tl-slurm render TASK.yaml)"
        ) from None
    stdout, stderr = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, "" if done.returncode else stdout, stderr)
