"""Submitting while Slurm's controller fails: the job is there once, or there is none and the error says so."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import BACKEND, PYTHON, files_left, tl_slurm, wait_for, write_task

TIMEOUT = 2  # seconds; MessageTimeout in slurm.conf, after which a client gives up waiting for an answer
PORT = 6817


@pytest.fixture(scope="module")
def shaky(_cluster_possible: None) -> Iterator[Cluster]:
    """A cluster whose controller a test may stop and kill; start() brings it back."""
    with Cluster({"nodes": 1, "extra_conf": f"MessageTimeout={TIMEOUT}"}) as started:
        yield started


class Submission:
    """A `tl-slurm submit` under way, of a held job with a name of its own."""

    serial = 0
    padding = "x" * 10_000  # makes the request a large one

    def __init__(self, cluster: Cluster, path: str = os.environ["PATH"]) -> None:
        Submission.serial += 1
        self.cluster, self.name = cluster, f"fault{Submission.serial}"
        self._out, self._err = (cluster.scratch / f"{self.name}.{kind}" for kind in ("out", "err"))
        task = write_task(cluster.scratch, "true\n", name_=self.name, resources={"provider": "slurm"})
        way = ["--backend", BACKEND] if BACKEND else []
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = cluster.popen(
                PYTHON, "-m", "tl_slurm_adapter.cli", "submit", task, "--sbatch-flags=--hold", *way,
                stdout=out, stderr=err, start_new_session=True, env={"PADDING": self.padding, "PATH": path},
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._err.read_text()

    def wait_until_said(self, words: str) -> None:
        wait_for(lambda: words in self.said or self.process.poll() is not None, 60)
        assert words in self.said

    def wait_until_sent(self) -> None:
        """Until the request waits for a controller that is stopped."""
        table = Path(f"/proc/{self.cluster.controller}/net/tcp")  # of its network namespace; see proc(5)
        # Connections to it, with the bytes that it has not read. Others (a slurmd) send little.
        queued = re.compile(rf":{PORT:04X} \w+:\w+ 01 \w+:(\w+)")
        # pyslurm asks for the configuration first.
        enough = 1 if BACKEND == "pyslurm" else len(self.padding)
        wait_for(lambda: any(int(size, 16) >= enough for size in queued.findall(table.read_text())))

    def interrupt(self) -> None:
        """As the terminal does: it and all that it has started."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Exit status and standard output."""
        status = self.process.wait(110)
        return status, self._out.read_text()

    def jobs(self) -> list[str]:
        """What came of it."""
        listed = self.cluster.run("squeue", "--noheader", "--states=all", f"--name={self.name}", "--format=%F")
        assert listed.returncode == 0, listed.stderr
        return listed.stdout.split()

    def is_one_job(self) -> None:
        status, stdout = self.end()
        assert status == 0, self.said
        assert self.jobs() == [stdout.strip()]


def kill_controller(cluster: Cluster) -> None:
    pid = cluster.controller
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


@contextlib.contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    """A controller that takes connections, because the kernel does, and answers none."""
    pid = cluster.controller
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# --- nobody there -------------------------------------------------------------------------------------------------


def test_a_controller_that_never_comes_back(shaky: Cluster) -> None:
    kill_controller(shaky)
    submission = Submission(shaky)
    status, stdout = submission.end()
    *retries, error = submission.said.splitlines()
    assert (status, stdout) == (1, "")
    assert [line[-8:] for line in retries] == ["(2 of 3)", "(3 of 3)"]
    assert error.startswith("error: Slurm did not take the job: ")
    assert "Unable to contact slurm controller (connect failure); nothing was submitted" in error
    assert error.endswith("type: scontrol ping")
    test = tl_slurm(shaky, "submit", shaky.scratch / "task.yaml", "--test-only")
    assert test.returncode == 1
    assert test.stderr.startswith("error: Slurm cannot be asked: ")
    assert "Unable to contact slurm controller" in test.stderr
    assert test.stderr.count("\n") == 1
    shaky.start()
    assert submission.jobs() == []
    assert files_left(shaky, shaky.scratch) == []


def test_a_controller_that_comes_back(shaky: Cluster) -> None:
    kill_controller(shaky)
    submission = Submission(shaky)
    submission.wait_until_said("Slurm's controller takes no job now; trying again in 5 s (2 of 3)")
    shaky.start()
    submission.is_one_job()


# --- no answer ----------------------------------------------------------------------------------------------------


def test_a_controller_that_is_slower_than_the_timeout(shaky: Cluster) -> None:
    with stopped(shaky):
        submission = Submission(shaky)
        # pyslurm asks for the configuration first, and then there is nothing to look for
        submission.wait_until_said("trying again" if BACKEND == "pyslurm" else "looking whether the job arrived")
    submission.is_one_job()


@pytest.mark.one_release
def test_stopped_for_20_seconds(shaky: Cluster, make_cluster) -> None:
    patient = make_cluster(nodes=1, extra_conf="MessageTimeout=60")
    with stopped(shaky), stopped(patient):
        late, in_time = Submission(shaky), Submission(patient)
        with pytest.raises(subprocess.TimeoutExpired):
            in_time.process.wait(20)
        assert late.process.poll() is None
    late.is_one_job()
    in_time.is_one_job()
    assert "looking whether the job arrived" in late.said
    assert in_time.said == ""


def test_a_controller_that_dies_with_the_request_and_comes_back(shaky: Cluster) -> None:
    shaky.run("srun", "--job-name=interactive", "true", check=True)  # a job without a script
    wait_for(lambda: b"interactive" in (shaky.base / "state/job_state").read_bytes())
    with contextlib.suppress(ProcessLookupError), stopped(shaky):
        submission = Submission(shaky)
        submission.wait_until_sent()
        kill_controller(shaky)
    submission.wait_until_said("trying again" if BACKEND == "pyslurm" else "looking whether the job arrived")
    with pytest.raises(subprocess.TimeoutExpired):
        submission.process.wait(3)  # times of Slurm have whole seconds: so much later it is sure which came first
    shaky.start()
    submission.is_one_job()


LOST = "Batch job submission failed: Socket timed out on send/recv operation"
LOSING = """\
#!/bin/sh
# The real sbatch, whose answer gets lost on the way.
{submit}
echo once >> "$0.calls"
sleep 1
{end}
"""
TIMED_OUT = f"echo 'sbatch: error: {LOST}' >&2; exit 1"


def losing_sbatch(cluster: Cluster, directory: Path, submit: bool, end: str = TIMED_OUT) -> Path:
    real = cluster.run("sh", "-c", "command -v sbatch", check=True).stdout.strip()
    path = directory / "bin" / "sbatch"
    path.parent.mkdir()
    path.write_text(LOSING.format(submit=f'{real} "$@" > /dev/null' if submit else "cat > /dev/null", end=end))
    path.chmod(0o755)
    return path


@pytest.mark.one_release
def test_a_lost_answer_never_makes_two_jobs_and_none_is_confused_with_another(cluster: Cluster, workdir: Path) -> None:
    sbatch = losing_sbatch(cluster, workdir, submit=True)
    cluster.run("srun", "--job-name=lost", "true", check=True)  # a job without a script
    code = """
from concurrent.futures import ThreadPoolExecutor
from tl_slurm_adapter import submit
def one(flags):
    return submit("true\\n", job_name="lost", backend="sbatch", sbatch_flags=flags).job_id
with ThreadPoolExecutor(4) as pool:
    print(*pool.map(one, ["--hold"] * 8 + ["--array=0-3", "--comment=mine --hold"]))
"""
    done = cluster.run(PYTHON, "-c", code, env={"PATH": f"{sbatch.parent}:{os.environ['PATH']}"}, cwd=workdir)
    assert done.returncode == 0, done.stderr
    ids = done.stdout.split()
    query = ["squeue", "--noheader", "--name=lost", "--states=all", "--array", "--format=%F|%K|%k"]
    jobs = [line.split("|") for line in cluster.run(*query).stdout.splitlines()]
    by_srun = min((job for job, _, _ in jobs), key=int)
    assert len(set(ids)) == len(ids) == 10
    assert {*ids, by_srun} == {job for job, _, _ in jobs}
    assert sorted(element for job, element, _ in jobs if job == ids[8]) == ["0", "1", "2", "3"]
    assert {comment for job, _, comment in jobs if job != ids[9]} <= {"", "(null)"}
    assert [comment for job, _, comment in jobs if job == ids[9]] == ["mine"]


@pytest.mark.one_release
def test_a_script_that_cannot_be_read_at_first_is_looked_at_again(cluster: Cluster, workdir: Path) -> None:
    sbatch = losing_sbatch(cluster, workdir, submit=True)
    real = cluster.run("sh", "-c", "command -v scontrol", check=True).stdout.strip()
    # What scontrol 22.05 says of a controller that has just gone, with exit status 0.
    words = "job script retrieval failed: Unable to contact slurm controller (connect failure)"
    text = f'#!/bin/sh\ncase $1 in write) mkdir "$0.once" 2> /dev/null && echo "{words}" >&2 && exit 0 ;; esac\n'
    sbatch.with_name("scontrol").write_text(f'{text}exec {real} "$@"\n')
    sbatch.with_name("scontrol").chmod(0o755)
    code = "from tl_slurm_adapter import submit; print(submit('true', backend='sbatch', sbatch_flags='--hold').job_id)"
    done = cluster.run(PYTHON, "-c", code, env={"PATH": f"{sbatch.parent}:{os.environ['PATH']}"}, cwd=workdir)
    assert sbatch.with_name("scontrol.once").exists()
    assert cluster.run("squeue", "--noheader", "--format=%i").stdout == done.stdout != ""


@pytest.mark.one_release
@pytest.mark.parametrize(
    ("end", "flags", "said", "words"),
    [
        (TIMED_OUT, "", 1, f"{LOST}, and no such job came up within a minute"),
        ("kill -KILL $$", "", 1, "sbatch ended without an answer, and no such job came up within a minute"),
        (TIMED_OUT, "--clusters=other", 0, LOST),  # whose queue is not this one
    ],
    ids=["timed out", "killed", "another cluster"],
)
def test_a_job_that_is_not_found_is_an_error_that_says_so(
    cluster: Cluster, workdir: Path, end: str, flags: str, said: int, words: str
) -> None:
    sbatch = losing_sbatch(cluster, workdir, submit=False)
    sbatch.write_text(sbatch.read_text().replace(TIMED_OUT, end))
    code = f"""
from tl_slurm_adapter import SubmitError, arrival, submit
arrival.SECONDS = 2
said = []
try:
    submit("true\\n", backend="sbatch", sbatch_flags={flags!r}, on_retry=said.append)
except SubmitError as error:
    print(error.unknown, error.transient, len(said), error)
"""
    done = cluster.run(PYTHON, "-c", code, env={"PATH": f"{sbatch.parent}:{os.environ['PATH']}"}, cwd=workdir)
    assert done.stdout == (
        f"True False {said} it is not known whether Slurm took the job: {words}; "
        "before you submit it again, look with: squeue --me\n"
    ), done.stderr
    assert sbatch.with_name("sbatch.calls").read_text() == "once\n"  # the controller may have it still


# --- no room ------------------------------------------------------------------------------------------------------


def fill(cluster: Cluster) -> None:
    """Hold jobs until there is no room; releases differ by one in what MaxJobCount means."""
    command = ["timeout", "--preserve-status", "2", "sbatch", "--hold", "--wrap=true"]
    while (done := cluster.run(*command)).returncode == 0:
        pass
    assert "sleeping and retrying" in done.stderr


def test_no_room_for_more_jobs(make_cluster) -> None:
    """MaxJobCount is reached; then the controller ends while sbatch waits, and comes back with room for more."""
    full = make_cluster(nodes=1, extra_conf=f"MaxJobCount=3\nMessageTimeout={TIMEOUT}")
    fill(full)
    submission = Submission(full)
    submission.wait_until_said("trying again" if BACKEND == "pyslurm" else "sleeping and retrying (for 2 minutes")
    assert submission.jobs() == []
    kill_controller(full)
    submission.wait_until_said("(3 of 3)" if BACKEND == "pyslurm" else "trying again in 5 s (2 of 3)")
    full.conf.write_text(full.conf.read_text().replace("MaxJobCount=3", "MaxJobCount=30"))
    full.start()
    submission.is_one_job()


@pytest.mark.one_release
def test_no_room_for_more_jobs_for_good(make_cluster) -> None:
    full = make_cluster(nodes=1, extra_conf="MaxJobCount=3")
    fill(full)
    # The real sbatch, with each of its pauses cut short.
    path = full.scratch / "bin" / "sbatch"
    path.parent.mkdir()
    real = full.run("sh", "-c", "command -v sbatch", check=True).stdout.strip()
    trace = "strace --quiet=all -e trace=clock_nanosleep -e inject=clock_nanosleep:retval=0"
    path.write_text(f'#!/bin/sh\nexec {trace} --output="$0.pauses" {real} "$@"\n')
    path.chmod(0o755)
    submission = Submission(full, f"{path.parent}:{os.environ['PATH']}")
    assert submission.end() == (1, "")
    assert submission.said.splitlines() == [
        "Slurm temporarily unable to accept job, sleeping and retrying (for 2 minutes at most)",
        "error: Slurm did not take the job: Slurm temporarily unable to accept job, sleeping and retrying; Batch job "
        "submission failed: Resource temporarily unavailable; nothing was submitted; when jobs have ended (squeue), "
        "submit it again",
    ]
    assert submission.jobs() == []
    pauses = re.findall(r"tv_sec=(\d+)", path.with_name("sbatch.pauses").read_text())
    assert [int(seconds) for seconds in pauses[:15]] == list(range(1, 16))  # two minutes, and once


# --- no disk ------------------------------------------------------------------------------------------------------


def test_the_controllers_disk_is_full(shaky: Cluster) -> None:
    state = shaky.base / "state"
    kill_controller(shaky)
    # Seen by the login host alone: a mount in its own mount namespace.
    small = 'cp -a "$1" "$1.kept" && mount -t tmpfs -o size=1m none "$1" && cp -a "$1.kept/." "$1" && rm -r "$1.kept"'
    shaky.run("sh", "-c", small, "sh", state, check=True)
    try:
        shaky.start()
        assert shaky.run("sh", "-c", f"cat /dev/zero > {state}/filler").returncode != 0
        refused = Submission(shaky)
        assert refused.end() == (1, "")
        assert refused.said.count("\n") == 1
        assert re.match(
            r"error: Slurm did not take the job: .*I/O error writing script/environment to file;", refused.said
        )
        assert "the disk of Slurm's controller is full or broken: tell the administrator" in refused.said
        assert refused.jobs() == []
        shaky.run("rm", f"{state}/filler", check=True)
        accepted = Submission(shaky)
        accepted.is_one_job()
    finally:
        kill_controller(shaky)
        shaky.run("umount", state, check=True)
    shaky.start()
    assert refused.jobs() == []


# --- an interrupt -------------------------------------------------------------------------------------------------


@pytest.mark.one_release
def test_an_interrupt_while_slurm_takes_the_job_says_its_id(shaky: Cluster) -> None:
    with stopped(shaky):
        submission = Submission(shaky)
        submission.wait_until_sent()
        submission.interrupt()
    status, stdout = submission.end()
    (job,) = submission.jobs()
    assert (status, stdout) == (130, "")
    assert submission.said.endswith(
        f"job {job} was submitted before the interrupt; to stop it, type: tl-slurm cancel {job}\n"
    )


@pytest.mark.one_release
def test_an_interrupt_while_slurm_does_not_answer_says_that_there_may_be_a_job(shaky: Cluster) -> None:
    with stopped(shaky):
        submission = Submission(shaky)
        submission.wait_until_sent()
        submission.interrupt()
        status, stdout = submission.end()
    assert (status, stdout) == (130, "")
    assert submission.said.endswith(
        "interrupted; there may be a job: before you submit it again, look with: squeue --me\n"
    )
    wait_for(lambda: len(submission.jobs()) == 1)


@pytest.mark.one_release
def test_an_interrupt_between_two_tries_says_that_there_is_no_job(shaky: Cluster) -> None:
    kill_controller(shaky)
    submission = Submission(shaky)
    submission.wait_until_said("trying again")
    submission.interrupt()
    assert submission.end() == (130, "")
    assert submission.said.endswith("\ninterrupted; nothing was submitted\n")
    shaky.start()
    assert submission.jobs() == []
