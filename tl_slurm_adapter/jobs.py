"""One submitted job: its status, its end, its log, and how to stop it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Slurm's job states (squeue(1), JOB STATE CODES) in the five that a caller has to tell apart.
_STATES = {
    "pending": "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT POWER_UP_NODE",
    "running": "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED UPDATE_DB LAUNCH_FAILED "
    "EXPEDITING RECONFIG_FAIL",
    "succeeded": "COMPLETED",
    "failed": "FAILED BOOT_FAIL DEADLINE NODE_FAIL OUT_OF_MEMORY TIMEOUT",
    "cancelled": "CANCELLED PREEMPTED REVOKED",
}
STATE_OF = {raw: state for state, names in _STATES.items() for raw in names.split()}
FINISHED = ("succeeded", "failed", "cancelled")
_SQUEUE_FIELDS = "State:|,exit_code:|,NodeList:|,StartTime:|,Reason:|,RestartCnt:|"
_SACCT = ("--noheader", "--parsable2", "--allocations")
_SACCT_FIELDS = "State,ExitCode,NodeList,Start,Reason"
FIRST_POLL, LAST_POLL = 0.2, 5.0  # seconds between two questions to Slurm; each is half as long again as the last
TICK = 0.2  # seconds between two looks at a log


class JobError(RuntimeError):
    """Slurm does not know the job or cannot be asked, or the log cannot be found; in Slurm's words if there are."""


@dataclass(frozen=True)
class JobStatus:
    """What Slurm says about a job at one moment.

    `state` is one of pending, running, succeeded, failed, cancelled; `raw_state` is Slurm's own word. `exit_code` is
    the status of the batch script, `signal` the signal that ended it (0: none); both 0 until the job has ended.
    """

    job_id: str
    state: str
    raw_state: str
    reason: str = ""
    exit_code: int = 0
    signal: int = 0
    nodes: str = ""
    start: str = ""
    log: str = ""
    restarts: int = 0

    @property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return self.state in FINISHED

    @property
    def exit_status(self) -> int:
        """The job's end as the exit status of a command: 0, the script's own, 128 + signal, or 1."""
        if self.state == "succeeded":
            return 0
        return self.exit_code or (128 + self.signal if self.signal else 1)

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        end = ""
        if self.signal:
            end = f", signal {self.signal}"
        elif self.exit_code:
            end = f", exit code {self.exit_code}"
        return f"job {self.job_id}: {self.raw_state}{reason}{end}"


@dataclass(frozen=True)
class Job:
    """A job of the cluster that this machine is a client of.

    Attributes:
        job_id: Slurm's number as text; "12_3" is one element of an array.
        backend: what submitted it: "pyslurm" or "sbatch" (or "" when the job was not submitted by this process).
        note: after backend "auto", why it was not pyslurm; empty otherwise.
    """

    job_id: str
    backend: str = ""
    note: str = ""
    environ: dict[str, str] | None = field(default=None, repr=False, compare=False)

    def status(self) -> JobStatus:
        """Ask Slurm once: squeue, then sacct (where there is accounting), then scontrol.

        Raises:
            JobError: the job is not known (any more), or the controller does not answer.
        """
        status = self._status()
        if not status.log:
            with contextlib.suppress(JobError):
                return replace(status, log=self._log())
        return status

    def wait(self, timeout: float | None = None, on_change: Callable[[JobStatus], None] | None = None) -> JobStatus:
        """Block until the job has ended.

        Args:
            timeout: seconds; None waits as long as it takes.
            on_change: called with the first status, and whenever state, reason or estimated start differ.

        Raises:
            TimeoutError: the job has not ended within `timeout`; it goes on.
            JobError: see `status`.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for status in self._statuses(on_change):
            if status is not None and status.finished:
                return status
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"{self.status()} after {timeout:g} s")
        raise AssertionError

    def logs(self, follow: bool = False, on_change: Callable[[JobStatus], None] | None = None) -> Iterator[bytes]:
        """The output of the batch script in pieces, as it is in the file.

        Args:
            follow: go on until the job has ended; otherwise what is there now.
            on_change: as for `wait`.

        Raises:
            JobError: the file is not there (without `follow`), or the job writes to none.
        """
        path, offset, finished = "", 0, False
        for status in self._statuses(on_change):
            if status is not None:
                path, finished = status.log or path or self._log(), status.finished
                if not path or path == "/dev/null":
                    raise JobError(f"job {self.job_id} writes its output to {path or 'no file that Slurm names'}")
            for piece in _read_from(path, offset):
                offset += len(piece)
                yield piece
            if finished or not follow:
                break
        if offset == 0 and not Path(path).exists():
            raise JobError(f"the log of job {self.job_id} is not there: {path} (is it on a disk of the node?)")

    def cancel(self) -> None:
        """Stop the job, if it has not ended yet.

        Raises:
            JobError: Slurm's words.
        """
        self.status()  # scancel says nothing, and succeeds, when there is no such job
        self.ask("scancel", self.job_id)

    def _statuses(self, on_change: Callable[[JobStatus], None] | None) -> Iterator[JobStatus | None]:
        """The status at growing intervals, from the start again when it changes; None at each tick between them."""
        pause, seen = FIRST_POLL, None
        while True:
            status = self._status()
            key = (status.raw_state, status.reason, status.nodes, status.start)
            if key != seen and on_change is not None:
                on_change(status)
            pause = FIRST_POLL if key != seen else min(pause * 1.5, LAST_POLL)
            seen = key
            yield status
            end = time.monotonic() + pause
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(TICK, left))
                yield None

    def _status(self) -> JobStatus:
        """The status without the log's place, from the first source that knows the job."""
        of_job = f"--jobs={self.job_id}"
        sources = (
            (read_table, ("squeue", "--noheader", "--states=all", of_job, f"--Format={_SQUEUE_FIELDS}")),
            (read_table, ("sacct", "--expand-patterns", *_SACCT, of_job, f"--format={_SACCT_FIELDS},Restarts,StdOut")),
            (read_table, ("sacct", *_SACCT, of_job, f"--format={_SACCT_FIELDS}")),  # before 24.05
            (read_status, ("scontrol", "show", "job", self.job_id)),
        )
        error = JobError()
        for read, command in sources:
            try:
                return read(self.job_id, self.ask(*command))
            except JobError as found:
                error = found
        raise error

    def _log(self) -> str:
        """Where the log is. squeue knows only the pattern, as slurm-%j.out."""
        return read_status(self.job_id, self.ask("scontrol", "show", "job", self.job_id)).log

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands prints. Raises JobError in Slurm's words."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=self.environ)
        except FileNotFoundError:
            raise JobError(f"{command[0]} is not installed here: run this on a login node of the cluster") from None
        if done.returncode:
            raise JobError(one_line(done.stderr) or f"{' '.join(command)} failed with status {done.returncode}")
        return done.stdout


def one_line(stderr: str) -> str:
    """Slurm's error text in one line, without the names of its commands.

    >>> one_line("sbatch: error: invalid partition specified: x\\nsbatch: error: Invalid partition name specified\\n")
    'invalid partition specified: x; Invalid partition name specified'
    """
    lines = [re.sub(r"^\w+: ((error|fatal): )?", "", line).strip() for line in stderr.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line))


def read_status(job_id: str, text: str) -> JobStatus:
    """The status in the output of `scontrol show job`; of an array, the elements together.

    Raises:
        JobError: there is no job in it.
    """
    records = [_record(part) for part in re.split(r"\n\s*\n", text) if "JobState=" in part]
    if not records:
        raise JobError(f"no answer about job {job_id} in: {one_line(text)[:200]!r}")
    return _together([_status(job_id, record) for record in records])


def read_table(job_id: str, text: str) -> JobStatus:
    """The status in a table of squeue or sacct, one job a line; of an array, the elements together.

    Columns: state, exit code, nodes, start, reason, restarts, output file; the last two may be missing.

    Raises:
        JobError: there is no job in it.

    >>> str(read_table("7", "FAILED|3:0|n1|2030-01-01T10:00:00|NonZeroExitCode"))
    'job 7: FAILED (NonZeroExitCode), exit code 3'
    """
    names = ("JobState", "ExitCode", "NodeList", "StartTime", "Reason", "Restarts", "StdOut")
    records = [dict(zip(names, line.strip().split("|", len(names) - 1), strict=False)) for line in text.splitlines()]
    statuses = [_status(job_id, record) for record in records if record.get("JobState")]
    if not statuses:
        raise JobError(f"no answer about job {job_id} in: {one_line(text)[:200]!r}")
    return _together(statuses)


def _together(statuses: list[JobStatus]) -> JobStatus:
    # An array is as far as its slowest element, and as bad as its worst.
    order = ("running", "pending", "failed", "cancelled", "succeeded")
    return min(statuses, key=lambda status: order.index(status.state))


def _record(text: str) -> dict[str, str]:
    """The fields of one job; job names and comments may hold `Key=value` texts, so only known line starts count."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        name, _, value = line.partition("=")
        if name in ("StdOut", "StdErr", "WorkDir"):
            fields[name] = value
        elif name in ("JobState", "Requeue", "StartTime", "NodeList", "ExitCode"):
            for word in line.split():
                key, _, value = word.partition("=")
                fields.setdefault(key, value)
    return fields


def _status(job_id: str, record: dict[str, str]) -> JobStatus:
    raw = (record.get("JobState") or " ").split(" ")[0]  # sacct: CANCELLED by 1000
    exit_code, colon, signal = (record.get("ExitCode") or "0:0").partition(":")
    if not colon:  # squeue 22.05 shows the status as wait(2) has it
        exit_code, signal = str(int(exit_code) >> 8), str(int(exit_code) & 127)
    clean = {
        key: "" if value in ("None", "(null)", "Unknown", "N/A", "None assigned") else value
        for key, value in record.items()
    }
    return JobStatus(
        job_id=job_id,
        state=STATE_OF.get(raw, "running"),
        raw_state=raw,
        reason=clean.get("Reason", ""),
        exit_code=int(exit_code or 0),
        signal=int(signal or 0),
        nodes=clean.get("NodeList", ""),
        start=clean.get("StartTime", ""),
        log=record.get("StdOut", ""),
        restarts=int(record.get("Restarts") or 0),
    )


def _read_from(path: str, offset: int) -> Iterator[bytes]:
    try:
        with Path(path).open("rb") as log:
            if os.fstat(log.fileno()).st_size < offset:
                offset = 0  # truncated by a requeue (--open-mode=truncate)
            log.seek(offset)
            while piece := log.read(1 << 16):
                yield piece
    except FileNotFoundError:
        return
