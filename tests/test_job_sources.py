"""The lines of squeue and sacct, of every release, become one status."""

from __future__ import annotations

from pathlib import Path

import pytest

from tl_slurm_adapter.jobs import Job, JobError, JobStatus, read_table


@pytest.mark.parametrize(
    ("text", "status"),
    [
        # squeue 22.05: the exit code as wait(2) has it
        (
            "FAILED|768|n1|2030-01-01T10:00:00|NonZeroExitCode|0|\n",
            JobStatus("7", "failed", "FAILED", "NonZeroExitCode", 3, 0, "n1", "2030-01-01T10:00:00"),
        ),
        (
            "FAILED|9|n1|2030-01-01T10:00:00|JobLaunchFailure|2|\n",
            JobStatus("7", "failed", "FAILED", "JobLaunchFailure", 0, 9, "n1", "2030-01-01T10:00:00", restarts=2),
        ),
        # squeue 24.11
        (
            "FAILED|0:9|n[1-2]|2030-01-01T10:00:00|RaisedSignal:9(Killed)|0|\n",
            JobStatus("7", "failed", "FAILED", "RaisedSignal:9(Killed)", 0, 9, "n[1-2]", "2030-01-01T10:00:00"),
        ),
        ("PENDING|0:0||N/A|JobHeldUser|0|\n", JobStatus("7", "pending", "PENDING", "JobHeldUser")),
        # sacct
        (
            "CANCELLED by 0|0:15|None assigned|Unknown|None\n",
            JobStatus("7", "cancelled", "CANCELLED", "by root", 0, 15),
        ),
        (
            "CANCELLED by 4000000000|0:15|n1|Unknown|None\n",
            JobStatus("7", "cancelled", "CANCELLED", "by 4000000000", 0, 15, "n1"),
        ),
        # what Slurm alone calls a signal: out of memory; a dead node; the output file cannot be opened
        (
            "OUT_OF_MEMORY|0:125|n1|N/A|OutOfMemory|0|\n",
            JobStatus("7", "failed", "OUT_OF_MEMORY", "OutOfMemory", 0, 9, "n1"),
        ),
        ("NODE_FAIL|0:1|n1|N/A|NodeDown|0|\n", JobStatus("7", "failed", "NODE_FAIL", "NodeDown", nodes="n1")),
        (
            "FAILED|4021|n1|N/A|JobLaunchFailure|0|\n",
            JobStatus("7", "failed", "FAILED", "JobLaunchFailure: it cannot write its output file", nodes="n1"),
        ),
        (
            "COMPLETED|0:0|n1|2030-01-01T10:00:00|None|1|/a|b/slurm-7.out\n",
            JobStatus(
                "7", "succeeded", "COMPLETED", "", 0, 0, "n1", "2030-01-01T10:00:00", "/a|b/slurm-7.out", restarts=1
            ),
        ),
        # an array: as far as its slowest element
        (
            "COMPLETED|0:0|n1|N/A|None|0|\nRUNNING|0:0|n2|N/A|None|0|\n",
            JobStatus("7", "running", "RUNNING", nodes="n2"),
        ),
    ],
)
def test_a_table_becomes_a_status(text: str, status: JobStatus) -> None:
    assert read_table("7", text) == status


@pytest.mark.parametrize("text", ["", "\n"])
def test_no_line_is_an_error(text: str) -> None:
    with pytest.raises(JobError, match="no answer about job 7"):
        read_table("7", text)


SCONTROL = "JobId=7 JobName=x\n   JobState=COMPLETED Reason=None\n   Requeue=1 ExitCode=0:0\n   StdOut=/log\n"
GONE = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
UNKNOWN = "Slurm does not know such a job, or has forgotten it: slurm_load_jobs error: Invalid job id specified"
AWAY_TEXT = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
AWAY = f"echo '{AWAY_TEXT}' >&2; exit 1"
# What each command does, and what is then found: each source is asked only when those before it know nothing.
SOURCES = [
    ({"squeue": "echo 'RUNNING|0:0|n1|N/A|None|0|'", "sacct": "exit 9", "scontrol": "exit 9"}, "RUNNING"),
    ({"squeue": GONE, "sacct": "echo 'TIMEOUT|0:0|n1|N/A|None|0|/log'", "scontrol": "exit 9"}, "TIMEOUT"),
    (
        {
            "squeue": GONE,
            "sacct": 'case "$*" in *StdOut*) exit 1;; esac; echo "TIMEOUT|0:0|n1|N/A|None"',
            "scontrol": "exit 9",
        },
        "TIMEOUT",
    ),
    # who cancelled a job is known to the accounting only
    (
        {
            "squeue": "echo 'CANCELLED|15|n1|N/A|None|0|'",
            "sacct": "echo 'CANCELLED by 0|0:15|n1|N/A|None|0|/log'",
            "scontrol": GONE,
        },
        "CANCELLED (by root), signal 15",
    ),
    ({"squeue": AWAY, "sacct": NO_ACCOUNTING, "scontrol": "exit 9"}, AWAY_TEXT),
    ({"squeue": AWAY, "sacct": "echo 'RUNNING|0:0|n1|N/A|None|0|/log'", "scontrol": "exit 9"}, "RUNNING"),
    ({"squeue": "", "sacct": NO_ACCOUNTING, "scontrol": "cat scontrol.out"}, "COMPLETED"),
    ({"squeue": GONE, "sacct": "", "scontrol": GONE}, UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize(("commands", "found"), SOURCES)
def test_sources_are_asked_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: dict[str, str], found: str
) -> None:
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "scontrol.out").write_text(SCONTROL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    try:
        assert str(Job("7").status()) == f"job 7: {found}"
    except JobError as error:
        assert str(error) == found
