"""`logs --follow`: whatever becomes of the log, the job and Slurm, the output is complete, once, and it ends."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import PYTHON, tl_slurm, wait_for, write_task

from tl_slurm_adapter import job_log, jobs
from tl_slurm_adapter.jobs import Job, JobError, JobStatus, LogError

ONE = {"provider": "slurm", "num_nodes": 1}
CLI = (PYTHON, "-m", "tl_slurm_adapter.cli")
GONE = "slurm_load_jobs error: Invalid job id specified"
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


class Slurm:
    """Commands that say what a test wants, and a log that it writes: each moment can be chosen."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        (directory / "squeue").write_text(
            "#!/bin/sh\ncase \"$*\" in *--array*) echo 7; exit; esac\n"
            f"echo >> {directory}/asked\n. {directory}/state\n"
            'if [ -n "$words" ]; then echo "$words" >&2; exit 1; fi\necho "$state|$exit|$nodes|N/A|None|$restarts|"\n'
        )  # fmt: skip
        (directory / "scontrol").write_text(
            f'#!/bin/sh\n. {directory}/state\nif [ -n "$words" ]; then echo "$words" >&2; exit 1; fi\n'
            'echo "   JobState=$state Restarts=$restarts"\n[ -z "$nodes" ] || echo "   BatchHost=$nodes"\n'
            'echo "   StdOut=$log"\n'
        )
        for name in ("squeue", "scontrol"):
            (directory / name).chmod(0o755)
        self.say("RUNNING")

    def say(self, state: str = "", *, restarts: int = 0, words: str = "", exit: str = "0:0", log: str = "") -> None:
        nodes = "" if state == "PENDING" else "n1"
        new = self.directory / "state.new"
        new.write_text(
            f"state={state} exit={exit} nodes={nodes} restarts={restarts} words='{words}' log='{log or self.log}'\n"
        )
        new.replace(self.directory / "state")

    @property
    def asked(self) -> int:
        try:
            return (self.directory / "asked").stat().st_size
        except FileNotFoundError:
            return 0

    def job(self) -> Job:
        return Job("7", environ={"PATH": f"{self.directory}:/usr/bin:/bin"})


class Follower:
    """Follows job 7 in a thread."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.output, self.states, self.notes = b"", list[JobStatus](), list[str]()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for piece in self.slurm.job().logs(True, self.states.append, self.notes.append):
                self.output += piece
        except Exception as error:
            self.error = error

    def sees(self, output: bytes) -> None:
        wait_for(lambda: self.output == output or not self._thread.is_alive())
        assert self.output == output

    def seen_again(self) -> None:
        """Wait until it knows what Slurm says now."""
        before = self.slurm.asked
        wait_for(lambda: self.slurm.asked >= before + 2)

    def end(self) -> bytes:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error:
            raise self.error
        return self.output


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setattr(jobs, "LAST_POLL", 0.3)
    monkeypatch.setattr(job_log, "LATE", 1)
    return Slurm(tmp_path)


@pytest.fixture
def followed(slurm: Slurm) -> Iterator[Callable[[], Follower]]:
    yield lambda: Follower(slurm)
    slurm.say(words=GONE)  # ends what a failed test has left behind


Follow = Callable[[], Follower]


# --- the file ------------------------------------------------------------------------------------------------------


def test_the_log_of_an_earlier_job_is_not_shown(slurm: Slurm, followed: Follow) -> None:
    slurm.log.write_text("of yesterday\n")
    slurm.say("PENDING")
    follower = followed()
    follower.seen_again()
    follower.seen_again()
    slurm.say("RUNNING")
    wait_for(lambda: follower.states[-1].state == "running")
    assert follower.output == b""
    slurm.log.write_text("of today, and longer\n")
    follower.sees(b"of today, and longer\n")
    slurm.say("COMPLETED")
    assert follower.end() == b"of today, and longer\n"


def test_a_job_that_is_over_before_the_second_question_is_shown(slurm: Slurm, followed: Follow) -> None:
    """Slurm says pending, and when the file is looked at, the job has come and gone."""
    slurm.say("PENDING")
    slurm.log.write_text("quick\n")
    follower = followed()
    wait_for(lambda: bool(follower.states))
    slurm.say("COMPLETED")
    assert follower.end() == b"quick\n"


FIRST, SECOND = b"started\nwork\n", b"started\nwork\nmore work\n"
# What the second attempt has written when the file is looked at again: less, as much, or more than the first.
SECONDS = [b"started\n", FIRST, b"STARTED\n" + SECOND, SECOND.upper()]


def follow_a_requeue(slurm: Slurm, followed: Follow, write: Callable[[bytes], object], second: bytes) -> None:
    """The first attempt, the second one, which begins with `write(second)`, and the end of that."""
    slurm.log.write_bytes(FIRST)
    follower = followed()
    follower.sees(FIRST)
    slurm.say("PENDING", restarts=1)
    wait_for(lambda: follower.states[-1].restarts == 1)
    write(second)
    slurm.say("RUNNING", restarts=1)
    follower.sees(FIRST + second)
    follower.seen_again()
    with slurm.log.open("ab") as log:
        log.write(b"end\n")
    slurm.say("COMPLETED", restarts=1)
    assert follower.end() == FIRST + second + b"end\n"


@pytest.mark.parametrize("second", SECONDS)
def test_a_requeue_that_truncates(slurm: Slurm, followed: Follow, second: bytes) -> None:
    def truncate(text: bytes) -> None:
        time.sleep(0.05)  # the time stamp of a file is no finer than the kernel's tick
        slurm.log.write_bytes(text)

    follow_a_requeue(slurm, followed, truncate, second)


@pytest.mark.parametrize("second", [b"s", *SECONDS])
def test_a_requeue_that_appends(slurm: Slurm, followed: Follow, second: bytes) -> None:
    def append(text: bytes) -> None:
        with slurm.log.open("ab") as log:
            log.write(text)

    follow_a_requeue(slurm, followed, append, second)


def test_an_attempt_on_another_node_with_a_log_of_its_own(slurm: Slurm, followed: Follow) -> None:
    second = slurm.directory / "second"
    slurm.log.write_bytes(b"on n1\n")
    follower = followed()
    follower.sees(b"on n1\n")
    slurm.say("PENDING", restarts=1, log=str(slurm.directory / "%N"))
    wait_for(lambda: follower.states[-1].restarts == 1)
    second.write_bytes(b"on n2\n")
    slurm.say("COMPLETED", restarts=1, log=str(second))
    assert follower.end() == b"on n1\non n2\n"


def test_an_attempt_on_the_same_node_goes_on_in_the_same_log(slurm: Slurm, followed: Follow) -> None:
    slurm.log.write_bytes(b"one\n")
    follower = followed()
    follower.sees(b"one\n")
    slurm.say("PENDING", restarts=1, log=str(slurm.directory / "%N"))
    wait_for(lambda: follower.states[-1].restarts == 1)
    slurm.log.write_bytes(b"one\ntwo\n")
    slurm.say("COMPLETED", restarts=1)
    assert follower.end() == b"one\ntwo\n"


def test_a_job_that_empties_its_own_log(slurm: Slurm, followed: Follow) -> None:
    slurm.log.write_bytes(b"one\ntwo\n")
    follower = followed()
    follower.sees(b"one\ntwo\n")
    slurm.log.write_bytes(b"new\n")
    follower.sees(b"one\ntwo\nnew\n")
    slurm.say("COMPLETED")
    follower.end()


def test_a_log_that_appears_late(slurm: Slurm, followed: Follow) -> None:
    slurm.log = slurm.directory / "later" / "log"
    slurm.say("RUNNING")
    follower = followed()
    wait_for(lambda: bool(follower.notes))
    assert follower.notes == [
        f"the log of job 7 is not there: {slurm.log}; if that is a disk of the node, look on n1; still looking"
    ]
    slurm.log.parent.mkdir()
    slurm.log.write_bytes(b"here\n")
    follower.sees(b"here\n")
    slurm.say("COMPLETED")
    assert follower.end() == b"here\n"


def test_a_log_that_appears_after_the_end_of_the_job(
    slurm: Slurm, followed: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "LATE", 60)
    slurm.say("COMPLETED")
    follower = followed()
    follower.seen_again()
    slurm.log.write_bytes(b"here\n")
    assert follower.end() == b"here\n"


def test_a_log_that_never_appears(slurm: Slurm, followed: Follow) -> None:
    slurm.say("FAILED", exit="3:0")
    with pytest.raises(LogError, match=f"is not there: {slurm.log}; if that is a disk of the node, look on n1"):
        followed().end()


def test_a_log_behind_a_link(slurm: Slurm, followed: Follow) -> None:
    slurm.log.symlink_to(slurm.directory / "real")
    follower = followed()
    (slurm.directory / "real").write_bytes(b"here\n")
    follower.sees(b"here\n")
    slurm.say("COMPLETED")
    assert follower.end() == b"here\n"


def test_a_log_that_is_replaced_by_a_copy_goes_on(slurm: Slurm, followed: Follow) -> None:
    slurm.log.write_bytes(b"one\n")
    follower = followed()
    follower.sees(b"one\n")
    copy = slurm.directory / "copy"
    copy.write_bytes(b"one\ntwo\n")
    copy.replace(slurm.log)
    follower.sees(b"one\ntwo\n")
    copy.write_bytes(b"another file\n")
    copy.replace(slurm.log)
    follower.sees(b"one\ntwo\nanother file\n")
    slurm.say("COMPLETED")
    follower.end()


def _as(kind: str, path: Path) -> None:
    path.unlink(missing_ok=True)
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/null" if kind == "device" else path)


@pytest.mark.parametrize("kind", ["named pipe", "directory", "device", "link to itself"])
@pytest.mark.parametrize("at", ["first", "later"])
def test_what_is_no_file_is_named(slurm: Slurm, followed: Follow, kind: str, at: str) -> None:
    if at == "first":
        _as(kind, slurm.log)
        follower = followed()
    else:
        slurm.log.write_bytes(b"one\n")
        follower = followed()
        follower.sees(b"one\n")
        _as(kind, slurm.log)
    with pytest.raises(LogError, match=r"there is nothing to show|cannot be read: Too many levels of symbolic links"):
        follower.end()


def test_without_its_log_a_job_is_followed_to_its_end(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from tl_slurm_adapter.cli import main

    monkeypatch.setenv("PATH", f"{slurm.directory}:/usr/bin:/bin")
    slurm.say("RUNNING", log="/dev/null")
    timer = threading.Timer(1, slurm.say, ("FAILED",), {"exit": "5:0", "log": "/dev/null"})
    timer.start()
    assert main(["logs", "--follow", "7"]) == 5
    timer.join()
    assert capfd.readouterr().err.splitlines()[1:] == [
        "the log /dev/null is no regular file: there is nothing to show",
        "job 7: FAILED, exit code 5",
    ]


# --- Slurm ---------------------------------------------------------------------------------------------------------


def test_slurm_away_for_a_while(slurm: Slurm, followed: Follow) -> None:
    slurm.log.write_bytes(b"one\n")
    follower = followed()
    follower.sees(b"one\n")
    slurm.say(words=AWAY)
    wait_for(lambda: bool(follower.notes))
    slurm.log.write_bytes(b"one\ntwo\n")
    follower.sees(b"one\ntwo\n")  # the log goes on
    follower.seen_again()
    slurm.say("COMPLETED")
    assert follower.end() == b"one\ntwo\n"
    assert follower.notes == [
        f"Slurm does not answer ({AWAY}); still trying, for 10 minutes",
        "Slurm answers again",
    ]


def test_a_client_that_hangs_does_not_stop_the_log(slurm: Slurm, followed: Follow) -> None:
    slurm.log.write_bytes(b"one\n")
    follower = followed()
    follower.sees(b"one\n")
    hold = slurm.directory / "hold"
    os.mkfifo(hold)
    (slurm.directory / "state").unlink()
    (slurm.directory / "state").symlink_to(hold)  # a read waits until there is a writer
    before = slurm.asked
    wait_for(lambda: slurm.asked > before)
    slurm.log.write_bytes(b"one\ntwo\n")
    follower.sees(b"one\ntwo\n")
    slurm.say("COMPLETED")
    hold.write_text((slurm.directory / "state").read_text())
    assert follower.end() == b"one\ntwo\n"


@pytest.mark.parametrize("call", [lambda job: job.wait(), lambda job: list(job.logs(follow=True))])
@pytest.mark.parametrize("first", [True, False])
def test_patience_ends(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, call: Callable[[Job], object], first: bool
) -> None:
    monkeypatch.setattr(jobs, "PATIENCE", 1.2)
    slurm.log.write_bytes(b"")
    timer = threading.Timer(0 if first else 1, slurm.say, (), {"words": AWAY})
    timer.start()
    if first:
        timer.join()
    with pytest.raises(
        JobError, match=r"Slurm has not answered for 0.02 minutes: .*connect failure\); job 7 may go on"
    ):
        call(slurm.job())
    timer.join()


def test_what_no_patience_helps_against_ends_at_once(slurm: Slurm) -> None:
    slurm.say(words="squeue: fatal: Could not establish a configuration source")
    with pytest.raises(JobError, match="Could not establish"):
        slurm.job().wait()
    slurm.say(words=GONE)
    with pytest.raises(JobError, match=r"Slurm does not know such a job, or has forgotten it: .*Invalid job id"):
        slurm.job().wait()


def test_without_follow_slurm_is_asked_once(slurm: Slurm) -> None:
    slurm.log.write_bytes(b"now\n")
    assert b"".join(slurm.job().logs()) == b"now\n"
    slurm.say("PENDING")
    slurm.log.unlink()
    with pytest.raises(LogError, match=f"job 7 has not started, so there is no log yet: {slurm.log}"):
        list(slurm.job().logs())
    assert slurm.asked == 2
    slurm.say(words=AWAY)
    with pytest.raises(JobError, match="Unable to contact slurm controller"):
        list(slurm.job().logs())


def test_wait_ends_in_time_while_slurm_is_away(slurm: Slurm) -> None:
    slurm.say(words=AWAY)
    notes: list[str] = []
    with pytest.raises(TimeoutError, match="job 7: no answer from Slurm after 1 s"):
        slurm.job().wait(1, on_note=notes.append)
    assert len(notes) == 1


def test_a_job_forgotten_between_two_questions(slurm: Slurm, followed: Follow) -> None:
    slurm.log.write_bytes(b"one\n")
    follower = followed()
    follower.sees(b"one\n")
    slurm.say(words=GONE)
    with (slurm.directory / "state").open("a") as state:  # its last line, in the moment in which Slurm is asked
        state.write(f"printf 'one\\ntwo\\n' > {slurm.log}.new; mv {slurm.log}.new {slurm.log}\n")
    with pytest.raises(JobError, match="job 7 has ended, and Slurm has forgotten how; it was RUNNING when last seen"):
        follower.end()
    assert follower.output == b"one\ntwo\n"


def test_slurm_is_asked_gently(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is looked at all the time, Slurm is not asked more often than every few seconds."""
    monkeypatch.setattr(jobs, "LAST_POLL", 5)
    slurm.log.write_bytes(b"")
    follower = Follower(slurm)
    for number in range(10):
        with slurm.log.open("ab") as log:
            log.write(b"%d\n" % number)
        follower.sees(slurm.log.read_bytes())
        time.sleep(0.4)
    slurm.say("COMPLETED")
    follower.end()
    # after 0, .2, .5, .95, 1.6, 2.6, 4.1, 6.4, 9.8, 14.8 s and so on: 12 times a minute
    assert slurm.asked <= 9


# --- on the real cluster -------------------------------------------------------------------------------------------

PRINT = "import os\nline = bytes(range(256)) * 64\nfor _ in range({pieces}): os.write(1, line)\n"


def _peak(process: subprocess.Popen[bytes]) -> int:
    """The most memory, in KiB, that a process has had since its exec; rusage would count this process, too."""
    peak = 0
    while process.poll() is None:
        try:
            text = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        peak = max([peak, *(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))])
        time.sleep(0.02)
    return peak


@pytest.mark.one_release
def test_a_hundred_megabytes_in_constant_memory(cluster: Cluster, workdir: Path) -> None:
    peaks = []
    for pieces in (64, 6400):  # 1 MiB, 100 MiB; all bytes there are, and no newline at the end
        (workdir / "print.py").write_text(PRINT.format(pieces=pieces))
        task = write_task(workdir, f"{PYTHON} print.py\n", resources=ONE)
        with (
            (workdir / "seen").open("wb") as seen,
            cluster.popen(
                *CLI, "submit", task, "--follow", cwd=workdir, stdout=seen, stderr=subprocess.PIPE
            ) as process,
        ):
            peaks.append(_peak(process))
            _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        expected = hashlib.sha256()
        for _ in range(pieces):
            expected.update(bytes(range(256)) * 64)
        assert hashlib.sha256((workdir / "seen").read_bytes()).digest() == expected.digest()
    assert peaks[0] > 1_000
    assert peaks[1] - peaks[0] < 5_000, peaks


@pytest.mark.one_release
@pytest.mark.parametrize("output", [b"\0\xff\xfe no newline", b"\r\n\x1b[31m\r", b""])
def test_what_is_no_text(cluster: Cluster, workdir: Path, output: bytes) -> None:
    (workdir / "data").write_bytes(output)
    task = write_task(workdir, "cat data\n", resources=ONE)
    done = cluster.run(*CLI, "submit", task, "--follow", cwd=workdir, text=False)
    assert (done.returncode, done.stdout) == (0, output), done.stderr


def test_every_pattern_of_a_name(cluster: Cluster, workdir: Path) -> None:
    task = write_task(workdir, "echo here\nexit 3\n", resources=ONE, name_="a b")
    for pattern in ("x-%j-%x-%N.out", "%5j_%n_%t_%s.out", "sub-%u.out"):
        done = tl_slurm(cluster, "submit", task, "--follow", "--sbatch-flags", f"--output={pattern}", cwd=workdir)
        assert (done.returncode, done.stdout) == (3, "here\n"), done.stderr


def test_an_array_one_element_after_the_other(cluster: Cluster, workdir: Path) -> None:
    script = "echo element $SLURM_ARRAY_TASK_ID\n[ $SLURM_ARRAY_TASK_ID != 2 ]\n"
    task = write_task(workdir, script, resources=ONE)
    flags = "--array=1-3 --output=log-%A_%3a.out"
    done = tl_slurm(cluster, "submit", task, "--follow", "--sbatch-flags", flags, cwd=workdir)
    assert (done.returncode, done.stdout) == (1, "element 1\nelement 2\nelement 3\n"), done.stderr
    assert done.stderr.splitlines()[-1].endswith("_2: FAILED (NonZeroExitCode), exit code 1")
    array = next(workdir.glob("log-*_001.out")).name.removeprefix("log-").removesuffix("_001.out")
    assert tl_slurm(cluster, "logs", array).stdout == done.stdout
    one = tl_slurm(cluster, "logs", "--follow", f"{array}_3")
    assert (one.returncode, one.stdout) == (0, "element 3\n")


@pytest.mark.one_release
def test_a_log_on_a_disk_of_the_node(cluster: Cluster, workdir: Path) -> None:
    """/tmp is each host's own."""
    task = write_task(workdir, "echo here\nexit 4\n", resources=ONE)
    done = tl_slurm(
        cluster, "submit", task, "--follow", "--sbatch-flags", f"-w {cluster.nodes[1]} -o /tmp/private.out", cwd=workdir
    )
    assert (done.returncode, done.stdout) == (4, "")
    said = f"is not there: /tmp/private.out; if that is a disk of the node, look on {cluster.nodes[1]}\n"
    assert said in done.stderr
    assert cluster.node(2, "cat", "/tmp/private.out").stdout == "here\n"
    cluster.node(2, "rm", "/tmp/private.out")


@pytest.mark.one_release
def test_a_reader_that_goes_ends_it_quietly(cluster: Cluster, workdir: Path) -> None:
    job = cluster.sbatch("seq 200000", "-o", "numbers", cwd=workdir)
    cluster.wait(job)
    done = cluster.run("bash", "-c", f"{' '.join(CLI)} logs {job} | head -1", cwd=workdir)
    assert (done.stdout, done.stderr) == ("1\n", "")
    done = cluster.run("bash", "-c", f"{' '.join(CLI)} logs --follow {job} | head -1", cwd=workdir)
    assert (done.stdout, done.stderr) == ("1\n", "")
    full = cluster.run("bash", "-c", f"{' '.join(CLI)} logs {job} > /dev/full", cwd=workdir)
    assert (full.returncode, full.stderr) == (1, "error: [Errno 28] No space left on device\n")


@pytest.mark.one_release
@pytest.mark.parametrize("signal_", ["INT", "TERM"])
@pytest.mark.parametrize("command", [("logs", "--follow"), ("wait",)])
def test_a_signal_ends_the_command_and_not_the_job(
    cluster: Cluster, workdir: Path, command: tuple[str, ...], signal_: str
) -> None:
    job = cluster.sbatch("echo started\nsleep 60", cwd=workdir)
    with cluster.popen(*CLI, *command, job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while f"job {job}: RUNNING" not in (line := process.stderr.readline()):  # type: ignore[union-attr]
            assert line
        cluster.run("kill", f"-{signal_}", str(process.pid), check=True)
        _, err = process.communicate(timeout=30)
    assert process.returncode == {"INT": 130, "TERM": 143}[signal_]
    assert f"job {job} goes on: tl-slurm logs --follow {job}, or tl-slurm cancel {job}\n" in err
    assert cluster.run("squeue", "-h", "-j", job, "-o", "%T").stdout == "RUNNING\n"


@pytest.mark.one_release
def test_a_job_that_slurm_has_forgotten(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(nodes=1, gres="", extra_conf="MinJobAge=2")
    job = cluster.sbatch("echo started; until [ -e go ]; do sleep 0.1; done; echo done")
    with cluster.popen(*CLI, "logs", "-f", job, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        os.kill(process.pid, signal.SIGSTOP)
        (cluster.scratch / "go").touch()
        wait_for(lambda: cluster.run("squeue", "--states=all", "--jobs", job).returncode != 0, 60)
        os.kill(process.pid, signal.SIGCONT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "done\n")
    assert f"error: job {job} has ended, and Slurm has forgotten how; it was RUNNING when last seen" in err
    for command in (["logs", "-f"], ["wait"]):
        done = tl_slurm(cluster, *command, job)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert done.stderr.startswith("error: Slurm does not know such a job, or has forgotten it: ")
