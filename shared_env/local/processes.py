"""The processes of the nodes: start them, pass on their output, and leave none behind, whatever happens."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from .machine import TryError
from .output import Output
from .process_tree import adopt_orphans, descendants, signal_all

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
TIMED_OUT = 124  # as timeout(1) has it
_TICK = 0.05
_ALL = 1 << 20  # more than a pipe holds: one read takes all that was written before it
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Process:
    """One started program. `exit_status` is None while it runs; 128 + N after signal N, as a shell counts."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], is_setup: bool) -> None:
        self.name = name
        self.popen = popen
        self.is_setup = is_setup
        self.started = time.monotonic()
        self.seconds = 0.0
        self.exit_status: int | None = None
        self.was_ended = False  # by us
        self.read: Callable[[], None] = lambda: None

    def ended(self, status: int) -> None:
        """Note the end."""
        self.exit_status = status if status >= 0 else 128 - status
        self.seconds = time.monotonic() - self.started


class Processes:
    """Runs programs side by side. A context manager: nothing that was started outlives it.

    The first program that fails, a signal to this process (SIGINT, SIGTERM, SIGHUP) and the end of the time each
    set `ended_by` and `exit_status`; `wait` then returns. To be used in the main thread of a program.

    Args:
        fd: where the output goes.
        colour: coloured prefixes.
        timeout: seconds that all of it may take; None for no limit.
    """

    def __init__(self, fd: int, *, colour: bool = False, timeout: float | None = None) -> None:
        self.ended_by = ""  # "failure", "timeout" or "signal"
        self.exit_status = 0
        self._signals: list[int] = []
        self._output = Output(fd, colour=colour, given_up=lambda: bool(self._signals))
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._selector = selectors.DefaultSelector()
        self._running: list[Process] = []
        self._others: set[int] = set()

    def __enter__(self) -> Processes:
        self._handlers = catch_signals(lambda number, frame: self._signals.append(number))
        self._directory = tempfile.TemporaryDirectory(prefix="tl-multinode-try-", ignore_cleanup_errors=True)
        self.files = Path(self._directory.name)  # the scripts that are run, and what the nodes put into TMPDIR
        self._others = set(descendants(set()))
        adopt_orphans(True)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        except OSError:  # the output is lost; all must end nevertheless
            self.stop()
            raise
        finally:
            adopt_orphans(False)
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            self._directory.cleanup()
            restore_signals(self._handlers)

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: str, *, umask: int = -1,
        is_setup: bool = False,
    ) -> Process:  # fmt: skip
        """Start a program in a session of its own; its output gets the prefix `[name]`.

        What a program leaves in the background ends with it, as on a node; what a setup leaves there stays to the end.
        The node has a TMPDIR of its own, which goes with the run, unless the task gives one.
        """
        if env.get("TMPDIR") == os.environ.get("TMPDIR") or env.get("TMPDIR", "").startswith(f"{self.files}/"):
            (self.files / name).mkdir(exist_ok=True)
            env = {**env, "TMPDIR": str(self.files / name)}
        reader, writer = os.pipe()
        try:
            popen = subprocess.Popen(
                argv, env=env, cwd=cwd, umask=umask, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=writer, stderr=writer,
            )  # fmt: skip
        except OSError as error:
            os.close(reader)
            raise TryError(f"cannot start {argv[0]} in {cwd}: {error.strerror}") from error
        finally:
            os.close(writer)
        process = Process(name, popen, is_setup)
        process.read = self._read(reader, name)
        self._running.append(process)
        return process

    def print(self, name: str, line: str) -> None:
        """Write a line as if it came from a program."""
        self._output.feed(name, os.fsencode(line) + b"\n")

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until `until()` or until `ended_by` is set."""
        while not (self.ended_by or until()):
            self._tick()
            if self._signals:
                self._end("signal", 128 + self._signals[0])
            elif self._deadline is not None and time.monotonic() > self._deadline:
                self._end("timeout", TIMED_OUT)

    def stop(self) -> None:
        """End all that runs: SIGTERM, and SIGKILL after GRACE seconds or a second signal; the output is passed on."""
        for process in self._running:
            process.was_ended = True
        asked = len(self._signals)
        end = time.monotonic() + GRACE
        told: set[int] = set()
        while self._alive() and time.monotonic() < end and len(self._signals) == asked:
            told |= self._kill(signal.SIGTERM, told)  # also what a shell that ignores it starts afterwards
            self._tick()
        end = time.monotonic() + GRACE
        while self._alive() and time.monotonic() < end:
            self._kill(signal.SIGKILL, set())
            self._tick()
        while self._selector.get_map() and time.monotonic() < end:
            self._tick()

    def _end(self, reason: str, exit_status: int) -> None:
        if not self.ended_by:
            self.ended_by, self.exit_status = reason, exit_status

    def _read(self, fd: int, name: str) -> Callable[[], None]:
        os.set_blocking(fd, False)
        is_open = True

        def read() -> None:
            nonlocal is_open
            try:
                data = os.read(fd, _ALL) if is_open else None
            except BlockingIOError:
                return
            if data:
                self._output.feed(name, data)
            elif is_open:
                is_open = False
                self._selector.unregister(fd)
                os.close(fd)
                self._output.end(name)

        self._selector.register(fd, selectors.EVENT_READ, read)
        return read

    def _tick(self) -> None:
        if self._selector.get_map():
            for key, _ in self._selector.select(_TICK):
                key.data()
        else:
            time.sleep(_TICK)
        for process in list(self._running):
            status = process.popen.poll()
            if status is not None:
                self._finish(process, status)
        self._bury()

    def _finish(self, process: Process, status: int) -> None:
        self._running.remove(process)
        process.ended(status)
        if not (process.is_setup or process.was_ended):
            below = descendants(self._others)
            signal_all([pid for pid, session in below.items() if session == process.popen.pid], signal.SIGKILL)
        # Its last words, and then the end of the last line, though a background process may hold the pipe open.
        process.read()
        self._output.end(process.name)
        if process.exit_status:
            self._end("failure", process.exit_status)

    def _bury(self) -> None:
        """Take the status of adopted orphans that have ended, so that nobody takes them for alive."""
        known = self._others.union(process.popen.pid for process in self._running)
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError, AttributeError):  # no children; no waitid on this system
            while (child := os.waitid(os.P_ALL, 0, flags)) and child.si_pid not in known:
                os.waitpid(child.si_pid, 0)

    def _alive(self) -> bool:
        return bool(self._running or descendants(self._others))

    def _kill(self, number: signal.Signals, without: set[int]) -> set[int]:
        pids = set(descendants(self._others)) - without
        signal_all(sorted(pids), number)  # a shell before its children: it need not tell how they ended
        for process in self._running:  # where there is no /proc
            if process.popen.pid not in pids | without:
                with contextlib.suppress(OSError):
                    os.killpg(process.popen.pid, number)
                pids.add(process.popen.pid)
        return pids


def catch_signals(handler: Callable[[int, FrameType | None], object]) -> dict[int, Any]:
    """Have SIGNALS handled, except those that are ignored (nohup); returns what `restore_signals` takes."""
    return {number: signal.signal(number, handler) for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}


def restore_signals(handlers: Mapping[int, Any]) -> None:
    """Undo `catch_signals`."""
    for number, handler in handlers.items():
        signal.signal(number, handler)
