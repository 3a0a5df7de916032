"""The tests on a real Slurm, again, on the releases of Slurm that this machine does not have.

Each release lives in a Debian root of its own, which chroot.sh builds once into a cache outside the checkout. Where
pyslurm can be built, the tests run a second time, and jobs are submitted through it.
"""

from __future__ import annotations

import os
import subprocess
import sys
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
def roots() -> None:
    """Build what is not in the cache."""
    if reason := missing():
        pytest.fail(reason, pytrace=False)
    for release in dict.fromkeys(run.release for run in RUNS):
        made = subprocess.run(
            [CHROOT, "make", release], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True
        )
        assert made.returncode == 0, made.stderr


@pytest.mark.timeout(MINUTES * 60)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.release} {run.backend}")
def test_the_slurm_tests_pass_there(run: Run, roots: None, tmp_path: Path) -> None:
    """One run after the other: at once they would fight for the processors, and tests have time limits."""
    process = run.start(tmp_path / "log")
    try:
        status = process.wait()
    finally:
        process.kill()  # with it goes all that runs in the root
        process.wait()
    text = (tmp_path / "log").read_text(errors="replace")
    assert status == 0, text[-20_000:]
    summary = text.strip().splitlines()[-1]
    assert " passed" in summary
    assert not any(word in summary for word in ("skipped", "failed", "error"))
