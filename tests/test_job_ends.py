"""However a job ends: its state, reason and exit status, what each command says of it, and a complete log.

Each test follows a job of its own with `submit --follow` and waits for it with `wait`. What takes Slurm half a minute
to notice begins first.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from slurm_jobs import BACKEND, PYTHON, tl_slurm, wait_for, write_task

CLI = (PYTHON, "-m", "tl_slurm_adapter.cli")
# With a SlurmdTimeout of 5 seconds 24.11 now and then takes a node that is well for a dead one.
CONF = """SlurmdTimeout=20
KillWait=2
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE
PartitionName=cancel Nodes=ALL PriorityTier=1 PreemptMode=CANCEL
PartitionName=high Nodes=ALL PriorityTier=100 PreemptMode=OFF"""
WORK = "echo started\nfor i in $(seq 600); do echo $i; sleep 0.1; done\n"
AGAIN = "submit it again; with --requeue Slurm starts such a job again by itself"
MORE_MEMORY = "give it more memory: resources.memory in GB, or --mem in the flags"


@dataclass
class Followed:
    """A job, the process that follows it, and where its output goes."""

    cluster: Cluster
    directory: Path
    job: str
    follow: subprocess.Popen[bytes]
    wait: subprocess.Popen[bytes]

    @property
    def output(self) -> bytes:
        return (self.directory / "followed").read_bytes()

    @property
    def said(self) -> str:
        return (self.directory / "said").read_text()

    def fields(self) -> str:
        return str(self.cluster.run("scontrol", "show", "job", self.job, check=True).stdout)

    def end(self, status: int, line: str, hint: str = "") -> dict[str, Any]:
        """Check what all commands say of the end; return `status --json`."""
        try:
            assert self.follow.wait(90) == status, self.said
        finally:
            self.follow.kill()
        _, waited = self.wait.communicate(timeout=30)
        assert self.wait.returncode == status
        for text in (self.said, waited.decode()):
            last = text.splitlines()[-2 if hint else -1 :]
            assert last == [f"job {self.job}: {line}", *([f"  to do: {hint}"] if hint else [])]
        shown = tl_slurm(self.cluster, "status", self.job, check=True).stdout.splitlines()
        assert shown[0] == f"job {self.job}: {line}"
        assert [text for text in shown if "to do" in text] == ([f"  to do: {hint}"] if hint else [])
        facts = json.loads(tl_slurm(self.cluster, "status", self.job, "--json").stdout)
        assert facts["exit_status"] == status
        return dict(facts)

    def complete(self) -> str:
        """The output, which is that of the file."""
        log = json.loads(tl_slurm(self.cluster, "status", self.job, "--json").stdout)["log"]
        assert self.output == Path(log).read_bytes()
        return self.output.decode()


Start = Callable[..., Followed]


def _start(cluster: Cluster, name: str, script: str, *options: str, nodes: int = 1) -> Followed:
    directory = cluster.scratch / re.sub(r"\W", "_", name)
    directory.mkdir()
    task = write_task(directory, script, resources={"provider": "slurm", "num_nodes": nodes, "cpus": 1})
    backend = ("--backend", BACKEND) if BACKEND else ()
    with (directory / "followed").open("wb") as followed, (directory / "said").open("wb") as said:
        follow = cluster.popen(
            *CLI, "submit", task, "--follow", *options, *backend, cwd=directory, stdout=followed, stderr=said
        )
    found: list[str] = []

    def submitted() -> bool:
        found[:] = re.findall(r"submitted job (\d+)", (directory / "said").read_text())
        return bool(found) or follow.poll() is not None

    wait_for(submitted)
    assert found, (directory / "said").read_text()
    wait = cluster.popen(*CLI, "wait", found[0], cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return Followed(cluster, directory, found[0], follow, wait)


def _running(followed: Followed) -> None:
    wait_for(lambda: b"started" in followed.output or followed.follow.poll() is not None)
    assert b"started" in followed.output, followed.said


@pytest.fixture(scope="module")
def breakable(_cluster_possible: None) -> Iterator[Cluster]:
    with Cluster({"nodes": 4, "gres": "", "extra_conf": CONF}) as started:
        yield started


@pytest.fixture(scope="module")
def slow(breakable: Cluster) -> dict[str, Followed]:
    """Jobs whose end Slurm looks for twice a minute; no other test uses the fourth node."""
    first, node = breakable.nodes[0], breakable.nodes[3]
    begun = {
        "time": _start(breakable, "time", WORK, "--sbatch-flags", f"-w {first} --time=5"),
        "dead": _start(
            breakable, "dead", "echo started $PPID $$\n" + WORK, "--sbatch-flags", f"-w {node} --no-requeue"
        ),
    }
    for followed in begun.values():
        _running(followed)
    breakable.run("scontrol", "update", f"jobid={begun['time'].job}", "endtime=now+1", check=True)
    # The node dies: its slurmd, and what looks after the job there.
    os.kill(int((breakable.base / f"slurmd.{node}.pid").read_text()), signal.SIGKILL)
    for pid in begun["dead"].output.split()[1:3]:
        os.kill(int(pid), signal.SIGKILL)
    return begun


@pytest.fixture
def start(breakable: Cluster, slow: dict[str, Followed], request: pytest.FixtureRequest) -> Start:
    name = request.node.name
    return lambda script, *options, **keys: _start(breakable, name, script, *options, **keys)


def test_its_own_exit_status_and_signal(start: Start) -> None:
    failed = start("echo started\necho last words >&2\nexit 3\n")
    facts = failed.end(3, "FAILED (NonZeroExitCode), exit code 3")
    assert (facts["state"], facts["raw_state"], facts["exit_code"], facts["signal"]) == ("failed", "FAILED", 3, 0)
    assert failed.complete() == "started\nlast words\n"


def test_it_kills_itself(start: Start) -> None:
    killed = start("echo started\nkill -TERM $$\n")
    assert killed.follow.wait(60) == 128 + 15
    facts = killed.end(128 + 15, killed.said.splitlines()[-1].split(": ", 1)[1])
    assert (facts["raw_state"], facts["exit_code"], facts["signal"]) == ("FAILED", 0, 15)
    assert killed.complete().startswith("started\n")


def test_cancelled_by_somebody(breakable: Cluster, start: Start) -> None:
    cancelled = start("trap 'echo last words; exit 7' TERM\n" + WORK)
    _running(cancelled)
    breakable.run("scancel", "--full", cancelled.job, check=True)
    facts = cancelled.end(7, "CANCELLED, exit code 7")
    assert (facts["state"], facts["exit_code"]) == ("cancelled", 7)
    assert "last words\n" in cancelled.complete()
    assert " CANCELLED AT " in cancelled.complete()


def test_cancelled_before_it_starts(breakable: Cluster, start: Start) -> None:
    held = start(WORK, "--sbatch-flags", "--hold")
    wait_for(lambda: "PENDING (JobHeldUser)\n" in held.said)
    assert f"  to do: to let it start, type: scontrol release {held.job}\n" in held.said
    breakable.run("scancel", held.job, check=True)
    assert held.follow.wait(60) == 1
    assert held.end(1, held.said.splitlines()[-1].split(": ", 1)[1])["raw_state"] == "CANCELLED"
    assert held.output == b""
    assert "log" not in held.said


def test_too_much_memory(start: Start) -> None:
    script = f"""echo started
exec {PYTHON} -c 'import time; x = b"x" * 300_000_000; print("allocated", flush=True); time.sleep(60)'
"""
    greedy = start(script, "--sbatch-flags", "--mem=100")
    assert greedy.follow.wait(60) == 128 + 9
    line, hint = greedy.said.splitlines()[-2:]
    facts = greedy.end(128 + 9, line.split(": ", 1)[1], hint.removeprefix("  to do: "))
    assert facts["state"] == "failed"
    assert "resources.memory in GB, or --mem" in hint
    assert "started\nallocated\n" in greedy.complete()
    assert "exceeded memory limit" in greedy.complete().lower()


def test_preempted(breakable: Cluster, start: Start) -> None:
    node = breakable.nodes[1]
    low = start(WORK, "--partition=cancel", "--sbatch-flags", f"-w {node}")
    _running(low)
    high = breakable.sbatch("true", "-phigh", "-w", node, "--exclusive")
    assert low.end(128 + 15, "PREEMPTED, signal 15", AGAIN)["state"] == "cancelled"
    assert "DUE TO PREEMPTION" in low.complete()
    breakable.wait(high)


def _start_again(followed: Followed) -> None:
    """Spare the test the time that Slurm holds a requeued job back."""

    def again() -> bool:
        followed.cluster.run("scontrol", "update", f"jobid={followed.job}", "starttime=now")
        return "JobState=PENDING" not in followed.fields()

    wait_for(lambda: ", restart 1" in followed.said)
    time.sleep(1.1)  # a slurmd refuses what starts again in the second in which it was killed
    wait_for(again, 60)


def _resume(cluster: Cluster, node: str) -> None:
    def is_back() -> bool:
        cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
        state = cluster.run("sinfo", "-hn", node, "-p", "debug", "-o", "%T").stdout
        return not state.startswith(("down", "drain"))

    wait_for(is_back)


# What the first attempt prints is known only up to where it was stopped; the second one prints two lines.
TWICE = 'echo started\n[ -z "$SLURM_RESTART_COUNT" ] || { echo again; exit; }\nsleep 60\n'


@pytest.mark.parametrize("mode", ["truncate", "append"])
def test_preempted_and_started_again(breakable: Cluster, start: Start, mode: str) -> None:
    node = breakable.nodes[1]
    low = start(TWICE, "--partition=low", "--requeue", "--sbatch-flags", f"-w {node} --open-mode={mode}")
    _running(low)
    high = breakable.sbatch("true", "-phigh", "-w", node, "--exclusive")
    _start_again(low)
    low.end(0, "COMPLETED, restart 1")
    breakable.wait(high)
    output = low.output.decode()
    assert re.fullmatch(r"started\n[^\n]*DUE TO PREEMPTION[^\n]*\n(Terminated\n)?started\nagain\n", output), output
    if mode == "append":
        low.complete()


def test_a_node_goes_down_and_the_job_starts_again_on_another(breakable: Cluster, start: Start) -> None:
    """Each attempt has a log of its own, named after the node."""
    node, other = breakable.nodes[2], breakable.nodes[1]
    job = start(TWICE, "--requeue", "--sbatch-flags", f"-w {node} --output=log-%N")
    _running(job)
    breakable.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test", check=True)
    wait_for(lambda: ", restart 1" in job.said)
    breakable.run("scontrol", "update", f"jobid={job.job}", f"reqnodelist={other}", check=True)
    _start_again(job)
    job.end(0, "COMPLETED, restart 1")
    _resume(breakable, node)
    logs = [(job.directory / f"log-{name}").read_text() for name in (node, other)]
    assert "DUE TO NODE FAILURE" in logs[0]
    assert logs[1] == "started\nagain\n"
    assert job.output.decode() == "".join(logs)


def test_a_node_goes_down_and_nothing_starts_again(breakable: Cluster, start: Start) -> None:
    node = breakable.nodes[2]
    job = start(WORK, "--sbatch-flags", f"-w {node} --no-requeue")
    _running(job)
    breakable.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test", check=True)
    assert job.follow.wait(60)
    line = job.said.splitlines()[-2].split(": ", 1)[1]
    assert line.startswith("NODE_FAIL")
    job.end(job.follow.returncode, line, AGAIN)
    _resume(breakable, node)
    assert "DUE TO NODE FAILURE" in job.complete()


def test_a_drained_node_lets_its_job_end(breakable: Cluster, start: Start) -> None:
    node = breakable.nodes[2]
    job = start("echo started\nsleep 3\necho done\n", "--sbatch-flags", f"-w {node}")
    _running(job)
    breakable.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test", check=True)
    job.end(0, "COMPLETED")
    _resume(breakable, node)
    assert job.complete() == "started\ndone\n"


def test_an_output_file_that_cannot_be_written(start: Start) -> None:
    """/proc is no place for directories; up to 22.05, a directory that is not there is enough."""
    job = start(WORK, "--sbatch-flags", "--no-requeue --output=/proc/nowhere/log")
    assert job.follow.wait(60) == 1
    hint = "make the directory of its log, or choose another: --output in the flags"
    job.end(1, "FAILED (JobLaunchFailure: it cannot write its output file)", hint)
    assert "the log of job" in job.said


def test_the_time_is_over(slow: dict[str, Followed]) -> None:
    job = slow["time"]
    job.follow.wait(90)
    line = job.said.splitlines()[-2].split(": ", 1)[1]
    assert re.fullmatch(r"TIMEOUT \(TimeLimit\)(, signal (9|15))?", line)
    status = {"9": 137, "5": 143}.get(line[-1], 1)
    job.end(status, line, "give it more time: --time-limit SECONDS, or --time in the flags")
    assert "DUE TO TIME LIMIT" in job.complete()


def test_the_node_that_writes_the_log_dies(slow: dict[str, Followed]) -> None:
    job = slow["dead"]
    job.follow.wait(90)
    line = job.said.splitlines()[-2].split(": ", 1)[1]
    assert line.startswith("NODE_FAIL")
    job.end(job.follow.returncode, line, AGAIN)
    assert job.follow.returncode in (1, 128 + 9, 128 + 15), line
    assert job.complete().startswith("started ")


# The last one: the slow jobs would outlive a restart, but 24.11 then forgets how late it is for them.
def test_the_controller_restarts_while_a_job_is_followed(breakable: Cluster, start: Start) -> None:
    job = start("echo started\nuntil [ -e go ]; do sleep 0.1; done\necho done\nexit 6\n")
    _running(job)
    os.kill(breakable.controller, signal.SIGSTOP)
    controller = breakable.controller
    wait_for(lambda: "does not answer" in job.said, 60)
    os.kill(controller, signal.SIGCONT)
    os.kill(controller, signal.SIGTERM)
    wait_for(lambda: not Path(f"/proc/{controller}").exists())
    (job.directory / "go").touch()
    wait_for(lambda: job.output == b"started\ndone\n")
    breakable.start()
    facts = job.end(6, "FAILED (NonZeroExitCode), exit code 6")
    assert facts["exit_code"] == 6
    assert job.said.count("Slurm does not answer") == 1
    assert job.said.count("Slurm answers again") == 1
