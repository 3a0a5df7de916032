"""The sbatch command: run here, or as one command line for a remote shell, and what it says."""

from __future__ import annotations

import contextlib
import hashlib
import re
import string
import subprocess
from typing import TYPE_CHECKING

from .client import SubmitError, failure, unknown
from .jobs import one_line
from .slurm_errno import NO_ANSWER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# While Slurm has no room for a job, sbatch repeats its request 15 times, with pauses of 1, 2, 3 ... seconds.
PATIENCE = "for 2 minutes at most"
_STARTS = string.digits + string.ascii_letters


def sbatch(
    script: str, environ: Mapping[str, str], *options: str, tell: Callable[[str], object] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run sbatch with a script on its standard input.

    Args:
        script: the batch script.
        environ: the environment of sbatch, and through it of the job.
        *options: options of sbatch.
        tell: called when sbatch says that it repeats its request.

    Raises:
        SubmitError: there is no sbatch here.
    """
    command = ["sbatch", "--parsable", *options]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environ))
    except FileNotFoundError:
        raise SubmitError(
            "sbatch is not installed here: run this on a login node of the cluster, or render the script and submit "
            "it there (tl-slurm render TASK.yaml)"
        ) from None
    with process:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101  # for mypy
        try:
            # It reads all of this before it writes, and writes less than a pipe holds.
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(script.encode("utf-8", "surrogateescape"))
            stderr = ""
            for line in process.stderr:
                stderr += line.decode("utf-8", "replace")
                if tell and repeats(words := one_line(line.decode("utf-8", "replace"))):
                    tell(words if " up to " in words else f"{words} ({PATIENCE})")
            stdout = process.stdout.read().decode("utf-8", "replace")
            process.wait()
        except BaseException:  # an interrupt
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def submit(script: str, environ: Mapping[str, str], tell: Callable[[str], object] | None = None) -> str:
    """Submit a script with sbatch; return the job id.

    Raises:
        SubmitError: see `parse_sbatch_output`.
    """
    done = sbatch(script, environ, tell=tell)
    if done.returncode < 0:
        raise unknown(f"{NO_ANSWER} (signal {-done.returncode})", done.stderr)
    return parse_sbatch_output(done.stdout, done.stderr)


def repeats(stderr: str) -> bool:
    """Whether sbatch says that it tries again by itself."""
    return "retrying" in stderr or "trying again" in stderr


def sbatch_command(script: str) -> str:
    """One command line that submits `script` in a remote shell: on standard input, nothing is left behind there.

    Run it once. When the connection breaks before the output is here, or `parse_sbatch_output` raises a SubmitError
    that is `unknown`, there may be a job: look (squeue --me) before the line is run again. When that error is
    `transient` there is none, and the line may be run again. sbatch itself waits for a controller that is down for
    about MessageTimeout (slurm.conf(5), 10 seconds), and for 2 minutes while Slurm has no room for more jobs.

    >>> lines = sbatch_command("#!/bin/sh\\ntrue\\n").splitlines()
    >>> lines[0] == f"sbatch --parsable <<'{lines[-1]}'", lines[1:-1]
    (True, ['#!/bin/sh', 'true'])
    """
    delimiter = "TL_MULTINODE_" + hashlib.sha256(script.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    while delimiter in script:
        delimiter += "_"
    # dash 0.5 loses a byte where a line leaves the delimiter, after a common start, with a non-ASCII character.
    choices = (delimiter, *(start + delimiter for start in _STARTS))
    delimiter = next((each for each in choices if not _hurt(each, script)), delimiter)
    end = "" if script.endswith("\n") else "\n"
    return f"sbatch --parsable <<'{delimiter}'\n{script}{end}{delimiter}"


def _hurt(delimiter: str, script: str) -> bool:
    starts = "|".join(delimiter[:length] for length in range(1, len(delimiter) + 1))
    return re.search(rf"^(?:{starts})[^\x00-\x7f]", script, re.MULTILINE) is not None


def parse_sbatch_output(stdout: str, stderr: str = "") -> str:
    """The job id in the output of sbatch, with or without --parsable.

    Raises:
        SubmitError: there is none; the message has Slurm's words, and the error says whether there may be a job.

    >>> parse_sbatch_output("Submitted batch job 42 on cluster c1"), parse_sbatch_output("43;c1")
    ('42', '43')
    """
    for line in reversed(stdout.splitlines()):
        found = re.fullmatch(r"\s*(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?\s*", line)
        if found:
            return found[1]
    words = stderr if one_line(stderr) else stdout
    raise failure(words) if one_line(words) else unknown("sbatch printed no job id")
