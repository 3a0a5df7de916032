"""The log of a job while it grows, on a file system that may be a shared one."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from typing import TYPE_CHECKING

from shared_env import first_host

from .job_status import JobError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .job_status import JobStatus

LATE = 10  # seconds after which a log that is not there is worth a word, or given up when the job has ended
_PIECE = 1 << 16
_TAIL = 1024  # bytes by which a file is known again
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class LogError(JobError):
    """The log cannot be read here; the job may be well."""


class Log:
    """What a job writes, over all its attempts: tell it each status (`heed`); each `look` gives what is new.

    Attributes:
        path: the file; empty while it is not known.
        found: whether it was there at some time.
        waiting: the job has not started, so that the file, if there is one, is not its own.
    """

    def __init__(self) -> None:
        self.path = ""
        self.found = False
        self.waiting = True
        self._restarted = self._runs = False
        self._restarts: int | None = None
        self._missed: float | None = None
        self._begin("")

    def _begin(self, path: str) -> None:
        self.path = path
        self._offset = 0
        self._tail = b""  # the last bytes before the offset
        self._stamp: tuple[int, ...] = ()  # the state of the file at the last look
        self._foreign: tuple[int, ...] = ()  # its state before the job started
        self._last_seen: tuple[int, ...] = ()

    def heed(self, status: JobStatus) -> None:
        """Take note of what Slurm says now."""
        pending = status.state == "pending"
        if status.log != self.path and not (pending and self.path):  # %N is open again while a job waits
            self._begin(status.log)
        self.waiting = pending and not status.restarts
        self._runs = status.raw_state == "RUNNING"
        if self._restarts is not None and status.restarts > self._restarts:
            self._restarted = True  # the next attempt may begin the file anew
        self._restarts = status.restarts
        if self.waiting:  # so it was when the file was looked at before
            self._foreign, self._last_seen = self._last_seen, self._state()

    def look(self) -> Iterator[bytes]:
        """What was written since the last look, in pieces; nothing while the file is not there.

        Raises:
            LogError: it is no file, or may not be read.
        """
        descriptor = self._open()
        if descriptor is None:
            self._missed = self._missed or time.monotonic()
            return
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise LogError(f"the log {self.path} is no regular file: there is nothing to show")
            self.found = True
            if self._foreign == _stamp(found):
                return
            self._foreign = ()
            if self._is_another(descriptor, found):
                self._offset, self._tail = 0, b""
            while piece := os.pread(descriptor, _PIECE, self._offset):
                self._offset += len(piece)
                self._tail = (self._tail + piece)[-_TAIL:]
                yield piece
                self._restarted &= not self._runs  # what the new attempt did to the file has been seen
            self._stamp = _stamp(os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def late(self) -> bool:
        """Whether the job has started, or ended, for a while without a log."""
        return not self.found and self._missed is not None and time.monotonic() - self._missed >= LATE

    def _state(self) -> tuple[int, ...]:
        try:
            return _stamp(os.stat(self.path))  # noqa: PTH116
        except OSError:
            return ()

    def _open(self) -> int | None:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a named pipe without a writer must not stop us
        try:
            return os.open(self.path, flags)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise LogError(f"the log {self.path} cannot be read: {error.strerror}") from None
        # A client of NFS remembers for a minute that a file is not there; opening its directory makes it ask again.
        with contextlib.suppress(OSError):
            os.close(os.open(os.path.dirname(self.path) or ".", flags | os.O_DIRECTORY))  # noqa: PTH120
        return None

    def _is_another(self, descriptor: int, found: os.stat_result) -> bool:
        """Whether what was read is no longer the beginning of the file: it was cut, or replaced."""
        if found.st_size < self._offset:
            return True
        replaced = bool(self._stamp) and found.st_ino != self._stamp[0]
        if not (self._restarted or replaced):
            return False
        if found.st_size == self._offset and not replaced:  # the same length, written again
            return _stamp(found) != self._stamp
        return os.pread(descriptor, len(self._tail), self._offset - len(self._tail)) != self._tail


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def missing(status: JobStatus) -> LogError:
    """The error for a log that is not there."""
    if not status.log:
        return LogError(f"Slurm names no log of job {status.job_id}")
    if status.state == "pending":
        return LogError(f"job {status.job_id} has not started, so there is no log yet: {status.log}")
    host = first_host(status.nodes) if status.nodes else "its node"
    return LogError(
        f"the log of job {status.job_id} is not there: {status.log}; if that is a disk of the node, look on {host}"
    )
