"""Submit a request through pyslurm, guarded: neither its import nor its defaults may harm the caller.

`import pyslurm` ends the interpreter when there is no slurm.conf, or when its library is of another Slurm release, so
it is tried in a child process first, once for each cluster. It also reads SLURM_* out of os.environ into every job,
leaves its dlopen flags behind, and its library writes to stderr; none of this reaches the caller.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from .client import NO_PYSLURM, failure, submission_environment
from .cluster import KEEP
from .jobs import one_line
from .options import OptionError
from .pyslurm_values import attributes, environment
from .script import BatchRequest

_PROBE = "import sys; sys.path[:] = sys.argv[1:]; import pyslurm; pyslurm.JobSubmitDescription(); print('usable')"
_PROBE_SECONDS = 60
_lock = threading.Lock()  # the library has one configuration for the process, and stderr is one file
_kept: dict[str | None, tuple[float, frozenset[str], frozenset[str]]] = {}  # when asked; propagated limits, and not
_conf: list[str | None] = []  # the SLURM_CONF that the library was initialized with


class UnusableError(Exception):
    """pyslurm cannot submit this request here; nothing was submitted. The text says why."""


def submit(request: BatchRequest, script: str, environ: Mapping[str, str]) -> str:
    """Submit through pyslurm; return the job id. The library waits for Slurm without letting other threads run.

    Args:
        request: what to submit.
        script: its text.
        environ: the environment that the sbatch command would get; its SLURM_CONF says which cluster is meant.

    Raises:
        UnusableError: there is no usable pyslurm here.
        OptionError: pyslurm cannot say what an option says; the message names it.
        SubmitError: Slurm refused the job, in Slurm's words, or did not answer.
    """
    sent = False
    with _lock:
        library = _load(environ.get("SLURM_CONF"))
        kind = library.JobSubmitDescription
        values = attributes(request.options, request.nodes, functools.partial(hasattr, kind))
        with tempfile.TemporaryFile() as said:
            try:
                with _stderr_to(said):
                    env = environment(
                        request.options, request.nodes, environ, _limits(library, environ.get("SLURM_CONF"))
                    )
                    "\0".join((script, *env, *env.values())).encode()
                    description = kind(script=script, environment=env, **values)
                    sent = True
                    return str(description.submit())
            except library.RPCError as error:
                said.seek(0)
                stderr = f"{said.read().decode('utf-8', 'replace')}pyslurm: error: {error}\n"
                raise failure(stderr, sent=sent) from None
            except UnicodeEncodeError:
                raise UnusableError("pyslurm takes text only; the script or a variable holds other bytes") from None
            except OptionError:
                raise
            except (TypeError, ValueError, OverflowError, AttributeError) as error:
                raise UnusableError(f"pyslurm does not take the request: {error}") from error


def why_unusable(environ: Mapping[str, str]) -> str:
    """Why pyslurm cannot be used for the cluster of ENVIRON's SLURM_CONF; empty if it can."""
    if importlib.util.find_spec("pyslurm") is None:
        return NO_PYSLURM
    found = _probe(environ.get("SLURM_CONF"), tuple(sys.path))
    return f"pyslurm cannot be imported here: {found}" if found else ""


@functools.cache
def _probe(conf: str | None, path: tuple[str, ...]) -> str:
    """What goes wrong when a child process imports pyslurm; empty: nothing."""
    environ = submission_environment()
    environ.pop("SLURM_CONF", None)
    if conf is not None:
        environ["SLURM_CONF"] = conf
    command = [sys.executable, "-c", _PROBE, *path]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environ, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0 and done.stdout.endswith("usable\n"):
        return ""
    end = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return one_line(words[-1]) if words else f"the interpreter ended with {end}"


def _load(conf: str | None) -> Any:
    """The module pyslurm, initialized for the cluster of CONF."""
    if reason := why_unusable({} if conf is None else {"SLURM_CONF": conf}):
        raise UnusableError(reason)
    flags = sys.getdlopenflags()
    try:
        pyslurm = importlib.import_module("pyslurm")
        submission: Any = importlib.import_module("pyslurm.core.job.submission")
    finally:
        sys.setdlopenflags(flags)  # pyslurm leaves RTLD_GLOBAL and RTLD_DEEPBIND on for every later import
    if not _conf:
        _conf.append(os.environ.get("SLURM_CONF"))
    if _conf[0] != conf:
        pyslurm.slurm_fini()
        pyslurm.slurm_init(conf)
        _conf[0] = conf
    if hasattr(submission, "pyenviron"):
        submission.pyenviron = {}  # it would copy the SLURM_* of a surrounding job into the new one
    elif any(name.startswith("SLURM_") and name != "SLURM_CONF" for name in os.environ):
        raise UnusableError("this pyslurm would pass the SLURM_* variables of the surrounding job on")
    return pyslurm


def _limits(library: Any, conf: str | None) -> Callable[[str], bool]:
    """Whether jobs get a limit of the submitting process, by the configuration of the cluster of CONF."""
    now = time.monotonic()
    if conf not in _kept or now - _kept[conf][0] > KEEP:
        config = library.slurmctld.Config.load()
        passed, held_back = (
            frozenset(name.upper().removeprefix("RLIMIT_") for name in names)
            for names in (config.propagate_resource_limits, config.propagate_resource_limits_except)
        )
        _kept[conf] = now, passed, held_back
    _, passed, held_back = _kept[conf]
    everything = "ALL" in passed or not passed
    return lambda name: name not in held_back if everything else name in passed


@contextlib.contextmanager
def _stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Let what C code writes to stderr end up in FILE. The library holds the GIL all the while, so no thread writes."""
    kept = os.dup(2)
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
