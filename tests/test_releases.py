"""The tests on a real Slurm, again, on the releases of Slurm that this machine does not have.

Each release lives in a Debian root of its own, which chroot.sh builds once into a cache outside the checkout. Where
pyslurm can be built, the tests run a second time, and jobs are submitted through it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cluster import missing

HERE = Path(__file__).resolve().parent
CHROOT = HERE / "cluster" / "chroot.sh"
PYSLURM = "/opt/pyslurm"  # where chroot.sh shows it
MINUTES = 60
#: Tests that bring a Slurm of their own, or none, or are about the network and not about Slurm.
ELSEWHERE = ("test_sky*.py", "test_try*.py", "test_preflight*.py")
#: Tests of the harness and of other ways to submit.
NOT_BY_PYSLURM = (
    "test_cluster.py", "test_docs*.py", "test_pyslurm.py", "test_remote_shell.py", "test_rest.py",
    "test_transformerlab.py",
)  # fmt: skip


class Run(NamedTuple):
    """The tests of one release, submitting in one way."""

    release: str
    backend: str

    def start(self, log: Path) -> subprocess.Popen[bytes]:
        pytest_ = [sys.executable, "-m", "pytest", "-m", "slurm", "-q", "-p", "no:cacheprovider", str(HERE)]
        env = {"PYTHON": sys.executable, "TL_TEST_BACKEND": self.backend}
        ignored = ELSEWHERE
        if self.backend == "pyslurm":
            ignored += NOT_BY_PYSLURM
            env["PYTHONPATH"] = PYSLURM
        pytest_ += [f"--ignore-glob={HERE / name}" for name in ignored]
        with log.open("wb") as out:
            return subprocess.Popen(
                [CHROOT, "run", self.release, *pytest_], cwd=HERE.parent, env={**os.environ, **env},
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip


RUNS = (Run("24.11", "sbatch"), Run("26.05", "sbatch"), Run("26.05", "pyslurm"))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Run, tuple[subprocess.Popen[bytes], Path]]]:
    """All runs at once, since they mostly wait, after what is not in the cache has been built."""
    if reason := missing():
        pytest.fail(reason, pytrace=False)
    for release in dict.fromkeys(run.release for run in RUNS):
        made = subprocess.run(
            [CHROOT, "make", release], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True
        )
        assert made.returncode == 0, made.stderr
    logs = {run: tmp_path_factory.mktemp("release") / "log" for run in RUNS}
    processes = {run: (run.start(log), log) for run, log in logs.items()}
    yield processes
    for process, _ in processes.values():
        process.kill()  # with it goes all that runs in the root
        process.wait()


@pytest.mark.timeout(MINUTES * 60)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.release} {run.backend}")
def test_the_slurm_tests_pass_there(run: Run, started: dict[Run, tuple[subprocess.Popen[bytes], Path]]) -> None:
    process, log = started[run]
    status = process.wait()
    text = log.read_text(errors="replace")
    assert status == 0, text[-20_000:]
    summary = text.strip().splitlines()[-1]
    assert " passed" in summary
    assert not any(word in summary for word in ("skipped", "failed", "error"))
