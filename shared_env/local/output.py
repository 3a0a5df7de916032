"""The output of several nodes as one stream: whole lines, each behind the name of its node."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable

# Where another line starts. A progress bar ends its states with a carriage return alone.
_NEXT_LINE = re.compile(rb"(?:\n|\r(?!\n))(?=.)", re.DOTALL)
# A longer line is written in pieces, so that no output needs more memory than this per node.
LONGEST_LINE = 1 << 16
_PIECE = 4096  # select(2): a writable pipe takes PIPE_BUF bytes without blocking


class Output:
    r"""Writes the data of several nodes to one file descriptor.

    Args:
        fd: where to write.
        colour: colour the prefixes.
        given_up: asked while the reader of `fd` takes nothing; after True, what it does not take is dropped.

    Raises:
        OSError: once, when `fd` cannot be written (its reader has gone, the disk is full); then all is dropped.

    >>> reader, writer = os.pipe()
    >>> output = Output(writer)
    >>> for name, data in ("node1", b"one\ntw"), ("node2", b"x\n"), ("node1", b"o"):
    ...     output.feed(name, data)
    >>> output.end("node1")
    >>> os.read(reader, 99)
    b'[node1] one\n[node2] x\n[node1] two\n'
    >>> os.close(reader), os.close(writer)
    (None, None)
    """

    def __init__(self, fd: int, *, colour: bool = False, given_up: Callable[[], bool] = lambda: False) -> None:
        self._fd = fd
        self._colour = colour
        self._given_up = given_up
        self._rest: dict[str, bytes] = {}
        self._prefixes: dict[str, bytes] = {}
        self._open = ""  # the node whose last line has no end yet
        self._is_lost = False

    def feed(self, name: str, data: bytes) -> None:
        """Write the complete lines of `data` and keep the rest."""
        data = self._rest.pop(name, b"") + data
        # A carriage return at the end of the data may be the first half of \r\n.
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        if len(data) - end > LONGEST_LINE:
            end = len(data) - 1
        if end:
            self._lines(name, data[:end])
        if end < len(data):
            self._rest[name] = data[end:]

    def end(self, name: str) -> None:
        """Write what is left of a node; a last line without an end gets one."""
        if rest := self._rest.pop(name, b""):
            self._lines(name, rest + b"\n")
        elif self._open == name:
            self._lines(name, b"\n")

    def _lines(self, name: str, data: bytes) -> None:
        prefix = self._prefixes.setdefault(name, self._prefix(name))
        head = prefix if not self._open else b"" if self._open == name else b"\n" + prefix
        self._write(head + _NEXT_LINE.sub(rb"\g<0>" + prefix, data))
        self._open = "" if data.endswith((b"\n", b"\r")) else name

    def _prefix(self, name: str) -> bytes:
        if not self._colour:
            return f"[{name}] ".encode()
        return f"\x1b[{31 + len(self._prefixes) % 6}m[{name}]\x1b[0m ".encode()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._is_lost:
            try:
                # Never block in a write: an interrupt must end the nodes also when nobody reads.
                if select.select([], [self._fd], [], 0.1)[1]:
                    rest = rest[os.write(self._fd, rest[:_PIECE]) :]
                else:
                    self._is_lost = self._given_up()
            except OSError:
                self._is_lost = True
                raise
