"""One submitted job: its status, its end, its log, and how to stop it."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .job_log import Log, LogError, missing
from .job_status import FINISHED, STATE_OF, JobError, JobStatus, one_line, read_status, read_table, worst
from .slurm_errno import is_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    OnChange = Callable[[JobStatus], object]
    OnNote = Callable[[str], object]

__all__ = [
    "FINISHED", "FIRST_POLL", "LAST_POLL", "STATE_OF", "Job", "JobError", "JobStatus", "LogError", "one_line",
    "read_status", "read_table", "worst",
]  # fmt: skip
_SQUEUE_FIELDS = "State:|,exit_code:|,NodeList:|,StartTime:|,Reason:|,RestartCnt:|"
_SACCT = ("--noheader", "--parsable2", "--allocations")
_SACCT_FIELDS = "State,ExitCode,NodeList,Start,Reason"
FIRST_POLL, LAST_POLL = 0.2, 5.0  # seconds between two questions to Slurm; each is half as long again as the last
TICK = 0.2  # seconds between two looks at a log
PATIENCE = 600  # seconds for which a Slurm that does not answer is asked again


def _nothing(_: object) -> None:
    pass


class UnknownJobError(JobError):
    """Slurm does not know the job: it never did, or it has forgotten it."""


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
        """Ask Slurm once: squeue; when that does not know the job, sacct (where there is accounting), then scontrol.

        Raises:
            JobError: the job is not known (any more), or the controller does not answer.
        """
        return self._with_log(self._status())

    def wait(
        self,
        timeout: float | None = None,
        on_change: OnChange = _nothing,
        on_note: OnNote = _nothing,
    ) -> JobStatus:
        """Block until the job has ended.

        A Slurm that does not answer is asked again, for PATIENCE (600) seconds.

        Args:
            timeout: seconds; None waits as long as it takes.
            on_change: called with the first status, and whenever state, reason, restarts or estimated start differ.
            on_note: called with one sentence when Slurm stops answering, and when it answers again.

        Raises:
            TimeoutError: the job has not ended within `timeout`; it goes on.
            JobError: the job is not known (any more), or the controller has not answered for too long.
        """
        end = None if timeout is None else time.monotonic() + timeout
        last: JobStatus | None = None
        for status in self._statuses(on_change, on_note):
            last = status or last
            if status is not None and status.finished:
                return status
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"{last or f'job {self.job_id}: no answer from Slurm'} after {timeout:g} s")
        raise AssertionError

    def logs(
        self,
        follow: bool = False,
        on_change: OnChange = _nothing,
        on_note: OnNote = _nothing,
    ) -> Iterator[bytes]:
        """The output of the batch script in pieces, as it is in the file; of an array, one element after the other.

        Args:
            follow: go on until the job has ended, also after it was put back in the queue; otherwise what is there now.
            on_change: with `follow`, as for `wait`.
            on_note: with `follow`, as for `wait`; also called when the job runs and has no log here.

        Raises:
            LogError: there is no log here: the job writes to none, or to a disk of the node.
            JobError: as for `wait`.
        """
        for element in self._elements():
            yield from element._one_log(follow, on_change, on_note)

    def cancel(self) -> None:
        """Stop the job, if it has not ended yet.

        Raises:
            JobError: Slurm's words.
        """
        self.status()  # scancel says nothing, and succeeds, when there is no such job
        self.ask("scancel", self.job_id)

    def _one_log(self, follow: bool, on_change: OnChange, on_note: OnNote) -> Iterator[bytes]:
        log, last, noted = Log(), None, False
        try:
            for status in self._statuses(on_change, on_note) if follow else (self.status(),):
                if status is not None:
                    log.heed(status)
                    last = status
                if last is None or (follow and log.waiting):
                    continue
                yield from log.look()
                if last.finished and (log.found or log.late() or not last.nodes):
                    break
                if follow and log.late() and not noted:
                    on_note(f"{missing(last)}; still looking")
                    noted = True
        except UnknownJobError:
            yield from log.look()
            if last is None or not last.finished:
                raise
        if last is not None and not log.found and (last.nodes or not follow):
            raise missing(last)

    def _statuses(self, on_change: OnChange, on_note: OnNote) -> Iterator[JobStatus | None]:
        """The status at growing intervals, from the start again when the state changes; None at each tick between."""
        pause, last, away = FIRST_POLL, None, None
        while True:
            # A thread asks, since a client waits 20 s for a controller that is away, and the log must go on.
            answers: queue.SimpleQueue[JobStatus | Exception] = queue.SimpleQueue()
            threading.Thread(target=self._answer, args=(last, answers), daemon=True).start()
            while (answer := _taken(answers)) is None:
                yield None
            if isinstance(answer, Exception):
                away = self._bear(answer, last, away, on_note)
                pause = LAST_POLL
            else:
                if away is not None:
                    on_note("Slurm answers again")
                if last is None or _shown(answer) != _shown(last):
                    on_change(answer)
                same = last is not None and last.raw_state == answer.raw_state
                pause = min(pause * 1.5, LAST_POLL) if same else FIRST_POLL
                away, last = None, answer
                yield answer
            end = time.monotonic() + pause
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(TICK, left))
                yield None

    def _answer(self, last: JobStatus | None, answers: queue.SimpleQueue[JobStatus | Exception]) -> None:
        """One status, with the place of the log; that is asked for only when it may have changed."""
        try:
            found = self._status()
            log = last.log if last else ""
            if last and log and (found.raw_state, found.restarts) == (last.raw_state, last.restarts):
                answers.put(replace(found, log=log))
            else:
                answers.put(self._with_log(found, log))
        except Exception as error:
            answers.put(error)

    def _bear(self, error: Exception, last: JobStatus | None, away: float | None, on_note: OnNote) -> float:
        """Since when Slurm is away; the error itself when it is of no use to ask again."""
        if isinstance(error, UnknownJobError) and last is not None:
            raise UnknownJobError(
                f"job {self.job_id} has ended, and Slurm has forgotten how; it was {last.raw_state} when last seen "
                "(MinJobAge in slurm.conf is short, and there is no accounting)"
            )
        lost = isinstance(error, JobError) and (last is not None or self.backend or is_away(str(error)))
        if isinstance(error, UnknownJobError) or not lost:
            raise error
        now = time.monotonic()
        if away is None:
            on_note(f"Slurm does not answer ({error}); still trying, for {PATIENCE / 60:g} minutes")
            return now
        if now - away >= PATIENCE:
            raise JobError(
                f"Slurm has not answered for {PATIENCE / 60:g} minutes: {error}; job {self.job_id} may go on"
            )
        return away

    def _elements(self) -> list[Job]:
        """The elements of an array, in order; of any other job, itself."""
        if "_" not in self.job_id:
            with contextlib.suppress(JobError):
                ids = self.ask(
                    "squeue", "--noheader", "--states=all", "--array", f"--jobs={self.job_id}", "--format=%i"
                )
                numbers = sorted(int(each.partition("_")[2]) for each in ids.split() if "_" in each)
                return [replace(self, job_id=f"{self.job_id}_{number}") for number in numbers] or [self]
        return [self]

    def _status(self) -> JobStatus:
        """The status without the log's place, from the first source that knows the job."""
        try:
            found = read_table(
                self.job_id,
                self.ask("squeue", "--noheader", "--states=all", f"--jobs={self.job_id}", f"--Format={_SQUEUE_FIELDS}"),
            )
        except JobError as error:
            lost = error
        else:
            if found.raw_state == "CANCELLED" and not found.reason:  # only the accounting knows by whom
                with contextlib.suppress(JobError):
                    return replace(found, reason=self._accounted().reason)
            return found
        with contextlib.suppress(JobError):
            return self._accounted()
        if is_away(str(lost)):  # and is for scontrol too
            raise lost
        try:
            return self._controlled()
        except JobError as error:
            if "Invalid job id" in str(error):
                raise UnknownJobError(f"Slurm does not know such a job, or has forgotten it: {error}") from None
            raise

    def _accounted(self) -> JobStatus:
        of_job = f"--jobs={self.job_id}"
        try:
            fields = f"--format={_SACCT_FIELDS},Restarts,StdOut"
            return read_table(self.job_id, self.ask("sacct", "--expand-patterns", *_SACCT, of_job, fields))
        except JobError:  # before 24.05
            return read_table(self.job_id, self.ask("sacct", *_SACCT, of_job, f"--format={_SACCT_FIELDS}"))

    def _controlled(self) -> JobStatus:
        return read_status(self.job_id, self.ask("scontrol", "show", "job", self.job_id))

    def _with_log(self, status: JobStatus, known: str = "") -> JobStatus:
        """The status with the log's place; squeue knows only the pattern, as slurm-%j.out."""
        if status.log:
            return status
        with contextlib.suppress(JobError):
            known = self._controlled().log or known
        return replace(status, log=known)

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands prints. Raises JobError in Slurm's words."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=self.environ)
        except FileNotFoundError:
            raise JobError(f"{command[0]} is not installed here: run this on a login node of the cluster") from None
        if done.returncode:
            raise JobError(one_line(done.stderr) or f"{' '.join(command)} failed with status {done.returncode}")
        return done.stdout


def _taken(answers: queue.SimpleQueue[JobStatus | Exception]) -> JobStatus | Exception | None:
    with contextlib.suppress(queue.Empty):
        return answers.get(timeout=TICK)
    return None


def _shown(status: JobStatus) -> tuple[object, ...]:
    """What of a status is worth a word when it changes."""
    start = status.start if status.state == "pending" else ""
    nodes = status.nodes if status.raw_state == "RUNNING" else ""
    return status.raw_state, status.reason, status.restarts, start, nodes
