"""Submitting without a cluster: texts for remote shells, answers of sbatch, and the environment that goes along."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared_env.contract import NAMES
from tl_slurm_adapter import (
    SubmitError,
    parse_rest_response,
    parse_sbatch_output,
    render_batch_script,
    sbatch_command,
    submit,
)
from tl_slurm_adapter.arrival import marked
from tl_slurm_adapter.client import failure, submission_environment
from tl_slurm_adapter.jobs import FINISHED, STATE_OF, JobError, one_line, read_status

# Recorded from scontrol show job of Slurm 22.05.8.
FAILED_JOB = """\
JobId=12 JobName=a JobState=RUNNING b=c
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901757 Nice=0 Account=(null) QOS=(null)
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 ExitCode=3:0
   RunTime=00:00:01 TimeLimit=UNLIMITED TimeMin=N/A
   SubmitTime=2026-11-30T20:57:08 EligibleTime=2026-11-30T20:57:08
   StartTime=2026-11-30T20:57:09 EndTime=2026-11-30T20:57:10 Deadline=N/A
   NodeList=n[1-2]
   BatchHost=n1
   Comment=x ExitCode=0:0 JobState=COMPLETED
   StdErr=/w/slurm 12.out
   StdIn=/dev/null
   StdOut=/w/slurm 12.out
   Power=
"""


def test_status_of_a_job_whose_name_and_comment_look_like_fields() -> None:
    status = read_status("12", FAILED_JOB)
    assert (status.state, status.raw_state, status.reason, status.exit_code) == (
        "failed",
        "FAILED",
        "NonZeroExitCode",
        3,
    )
    assert (status.nodes, status.log, status.restarts) == ("n[1-2]", "/w/slurm 12.out", 1)
    assert status.exit_status == 3
    assert str(status) == "job 12: FAILED (NonZeroExitCode), exit code 3, restart 1"


def test_status_of_an_array_is_its_worst_element() -> None:
    good = FAILED_JOB.replace("JobState=FAILED", "JobState=COMPLETED").replace("ExitCode=3:0", "ExitCode=0:0")
    running = FAILED_JOB.replace("JobState=FAILED", "JobState=RUNNING").replace("ExitCode=3:0", "ExitCode=0:0")
    assert read_status("12", f"{good}\n{FAILED_JOB}\n").state == "failed"
    assert read_status("12", f"{good}\n{FAILED_JOB}\n{running}").state == "running"
    assert read_status("12", good).exit_status == 0


def test_no_job_in_the_answer() -> None:
    with pytest.raises(JobError, match="no answer about job 12"):
        read_status("12", "")


# The state names in squeue(1), "JOB STATE CODES", of 22.05.8, 24.11.5 and 26.05.5 together.
STATES_OF_THE_MANUAL = """
    BOOT_FAIL CANCELLED COMPLETED COMPLETING CONFIGURING DEADLINE EXPEDITING FAILED LAUNCH_FAILED NODE_FAIL
    OUT_OF_MEMORY PENDING POWER_UP_NODE PREEMPTED RECONFIG_FAIL REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING RESV_DEL_HOLD
    REVOKED RUNNING SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED TIMEOUT UPDATE_DB
"""


def test_every_state_of_the_manual_is_known() -> None:
    assert set(STATES_OF_THE_MANUAL.split()) == STATE_OF.keys()
    assert set(STATE_OF.values()) == {"pending", "running", *FINISHED}


@pytest.mark.parametrize(
    ("stdout", "job"),
    [("42\n", "42"), ("42;cluster\n", "42"), ("Submitted batch job 42\n", "42"),
     ("Submitted batch job 42 on cluster c1\n", "42"), ("Welcome to login1\n\nSubmitted batch job 7\r\n", "7")],
)  # fmt: skip
def test_job_ids(stdout: str, job: str) -> None:
    assert parse_sbatch_output(stdout) == job


@pytest.mark.parametrize(
    ("stdout", "stderr", "words"),
    [
        ("", "sbatch: error: invalid partition specified: x\n"
         "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
         "Slurm did not take the job: invalid partition specified: x; Batch job submission failed: Invalid partition"),
        ("bash: sbatch: command not found\n", "", "command not found"),
        ("", "", "printed no job id"),
        ("job 42 of 43", "", "job 42 of 43"),
    ],
)  # fmt: skip
def test_rejections_raise(stdout: str, stderr: str, words: str) -> None:
    with pytest.raises(SubmitError) as caught:
        parse_sbatch_output(stdout, stderr)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.stderr == (stderr or stdout)


NO_JOB, NO_JOB_YET, PERHAPS = (False, False), (True, False), (False, True)  # transient, unknown


@pytest.mark.parametrize(
    ("words", "fate"),
    [
        ("Invalid account or account/partition combination specified", NO_JOB),
        ("I/O error writing script/environment to file", NO_JOB),
        ("Unable to contact slurm controller (connect failure)", NO_JOB_YET),
        ("Slurm backup controller in standby mode", NO_JOB_YET),
        ("Resource temporarily unavailable", NO_JOB_YET),
        ("MaxJobCount limit reached", NO_JOB_YET),
        ("Socket timed out on send/recv operation", PERHAPS),
        ("Unable to contact slurm controller (send failure)", PERHAPS),
        ("Unable to contact slurm controller (receive failure)", PERHAPS),
        ("Zero Bytes were transmitted or received", PERHAPS),
        ("Connection reset by peer", PERHAPS),
    ],
)
def test_what_became_of_a_request(words: str, fate: tuple[bool, bool]) -> None:
    stderr = f"sbatch: error: Batch job submission failed: {words}\n"
    for raising in (
        lambda: parse_sbatch_output("", stderr),
        lambda: parse_rest_response({"errors": [{"error": words}]}),
    ):
        with pytest.raises(SubmitError, match=re.escape(words)) as caught:
            raising()
        assert (caught.value.transient, caught.value.unknown) == fate
        assert ("squeue --me" in str(caught.value)) == caught.value.unknown
    before = failure(stderr, sent=False)  # the request itself had not been sent
    assert (before.transient, before.unknown) == (fate != NO_JOB, False)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).filter(str.strip), st.integers(1, 2))
def test_a_submission_differs_from_its_preview_in_one_empty_line(run: str, nodes: int) -> None:
    preview = render_batch_script(f"true\n{run}", num_nodes=nodes, job_name="x", sbatch_flags="-t 5")
    lines, sent = preview.split("\n"), marked(preview, "5eed").split("\n")
    (place,) = [number for number, (line, new) in enumerate(zip(lines, sent, strict=True)) if line != new]
    assert (lines[place], sent[place]) == ("", "# tl-multinode submission 5eed")
    assert all(line.startswith("#") for line in lines[:place])


def test_one_line_keeps_the_words() -> None:
    assert one_line("sbatch: error: a\nsbatch: error: a\n\nsbatch: b\n") == "a; b"


@given(st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"])))
@example("T\x80\nTL_M\u20ac\n0\u20ac")
def test_a_remote_shell_hands_on_the_script_as_it_is(text: str) -> None:
    script = f"#!/bin/sh\n{text}\nEOF\n"
    command = sbatch_command(script).replace("sbatch --parsable", "cat", 1)
    for shell in ("bash", "dash"):
        assert subprocess.run([shell, "-c", command], capture_output=True, check=True).stdout.decode() == script


def test_the_delimiter_is_in_no_line_of_the_script() -> None:
    first = sbatch_command("x")
    delimiter = first.splitlines()[-1]
    nested = sbatch_command(first)
    assert nested.splitlines()[-1] not in first.splitlines()
    assert nested.splitlines()[-1] != delimiter


def test_environment_that_goes_along() -> None:
    caller = {
        **dict.fromkeys(NAMES, "1"), "SLURM_CONF": "/c", "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n", "SBATCH_X": "1",
        "SRUN_X": "1", "PMI_RANK": "1", "PMIX_X": "1", "PET_X": "1", "SKYPILOT_NODE_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "1", "PATH": "/bin", "HOME": "/h", "SECRET": "s", "LC_ALL": "C", "RANKING": "1",
    }  # fmt: skip
    assert submission_environment(True, caller) == {
        "SLURM_CONF": "/c", "PATH": "/bin", "HOME": "/h", "SECRET": "s", "LC_ALL": "C", "RANKING": "1",
    }  # fmt: skip
    assert submission_environment(False, caller) == {"SLURM_CONF": "/c", "PATH": "/bin", "HOME": "/h", "LC_ALL": "C"}


def test_unusable_backend_and_arguments_raise_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ValueError, match="backend must be one of"):
        submit("true", backend="ssh")
    with pytest.raises(ValueError, match="num_nodes"):
        submit("true", num_nodes=0)
    with pytest.raises(SubmitError, match="sbatch is not installed here"):
        submit("true", backend="sbatch")


def test_library_code_does_not_print_or_change_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    before = (dict(os.environ), Path.cwd())
    render_batch_script("srun torchrun --node_rank=$NODE_RANK x", num_nodes=2, accelerators="L4:2")
    assert (dict(os.environ), Path.cwd()) == before
    assert capfd.readouterr() == ("", "")
