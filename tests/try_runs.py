"""Helpers for tests that run `shared-env try` as a user does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLES = CHECKOUT / "examples"
MARK = "TRY_TEST"
GPUS = ("CUDA_VISIBLE_DEVICES",)
# The task may say `python` and `torchrun`.
PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"


class Directory:
    """A directory to run in, with a temporary directory and a mark of its own, to see what was left behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = uuid.uuid4().hex
        for name in ("tmp", "home"):
            (path / name).mkdir()

    def task(self, script: str, name: str = "task.yaml", nodes: int = 2, **keys: Any) -> Path:
        """Write a task; `env_` is its env."""
        resources = {"num_nodes": nodes, **keys.pop("resources", {})}
        content = {key.rstrip("_"): value for key, value in keys.items()}
        file = self.path / name
        file.write_text(yaml.safe_dump({"resources": resources, **content, "script": script}, sort_keys=False))
        return file

    def popen(
        self, *arguments: Any, env: dict[str, str] | None = None, under: Sequence[str] = (), **kwargs: Any
    ) -> subprocess.Popen[Any]:
        """Start `shared-env try` in a process group of its own, `under` another command if one is given."""
        own = {"PATH": PATH, "TMPDIR": str(self.path / "tmp"), "HOME": str(self.path / "home"), MARK: self.mark}
        kwargs = {"cwd": self.path, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **kwargs}
        kwargs = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True, **kwargs}
        return subprocess.Popen(
            [*under, sys.executable, "-m", "shared_env.cli", "try", *map(str, arguments)],
            env={**{name: value for name, value in os.environ.items() if name not in GPUS}, **own, **(env or {})},
            preexec_fn=_default_signals,  # noqa: PLW1509
            **kwargs,
        )

    def run(self, *arguments: Any, timeout: float = 60, **kwargs: Any) -> subprocess.CompletedProcess[Any]:
        """Run it to its end, and see that nothing is left."""
        with self.popen(*arguments, **kwargs) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        self.assert_clean()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def assert_clean(self) -> None:
        """No process and no temporary file is there any more."""
        assert list(self.processes()) == []
        assert list((self.path / "tmp").iterdir()) == []

    def processes(self) -> Iterator[str]:
        """The live processes that came from here."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes():
                    yield (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def lines_of(text: str, node: str) -> list[str]:
    """The lines of one node, without their prefix."""
    prefix = f"[{node}] "
    return [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]


def read_until(stream: Any, *words: str) -> str:
    """Read lines until each of the words has been seen."""
    seen = ""
    while not all(word in seen for word in words):
        line = stream.readline()
        assert line, f"ended before {words}: {seen}"
        seen += line
    return seen


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def wait_for_exit(process: subprocess.Popen[Any], seconds: float = 30) -> int:
    """The exit status; the output is not read meanwhile."""
    end = time.monotonic() + seconds
    while process.poll() is None:
        assert time.monotonic() < end, "it does not end"
        time.sleep(0.05)
    return int(process.returncode)


def _default_signals() -> None:
    # The tests may themselves run in the background of a shell, which ignores these.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
