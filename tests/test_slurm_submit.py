"""Submitting to the real cluster: what is asked for arrives, and what cannot be is refused in one line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import BACKEND, PYTHON, files_left, follow, job_id, tl_slurm, wait_for, write_task

TWO = {"provider": "slurm", "num_nodes": 2}


def job_fields(cluster: Cluster, job: str) -> dict[str, str]:
    text = cluster.run("scontrol", "show", "job", job, check=True).stdout
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def job_ids(cluster: Cluster) -> set[str]:
    return set(cluster.run("squeue", "--noheader", "--states=all", "--format=%A", check=True).stdout.split())


def held(cluster: Cluster, workdir: Path, resources: dict[str, object], flags: str = "") -> dict[str, str]:
    """The fields of a job that was submitted held, and cancelled again."""
    path = write_task(workdir, "true\n", resources={**TWO, **resources})
    done = tl_slurm(cluster, "submit", path, "--sbatch-flags", f"--hold {flags}", cwd=workdir)
    assert done.returncode == 0, done.stderr
    fields = job_fields(cluster, done.stdout.strip())
    cluster.run("scancel", done.stdout.strip(), check=True)
    return fields


def test_resources_arrive(cluster: Cluster, workdir: Path) -> None:
    fields = held(cluster, workdir, {"accelerators": "L4:2", "cpus": "4+", "memory": "2+"})
    assert fields["NumNodes"] in ("2", "2-2")
    assert fields["NumTasks"] == "2"
    assert fields["CPUs/Task"] == "4"
    assert fields["TresPerNode"] in ("gres:gpu:l4:2", "gres/gpu:l4:2")  # the cluster's own spelling of the type
    assert fields["MinMemoryNode"] == "2G"


def test_a_users_flag_wins_over_the_default(cluster: Cluster, workdir: Path) -> None:
    fields = held(
        cluster,
        workdir,
        {"accelerators": "L4:2", "cpus": 4, "memory": 2},
        "--gres=gpu:1 -c 2 --mem=1500M --ntasks-per-node=2 -p short",
    )
    assert fields["TresPerNode"] in ("gres:gpu:1", "gres/gpu:1")
    assert (fields["CPUs/Task"], fields["MinMemoryNode"], fields["Partition"]) == ("2", "1500M", "short")
    assert fields["NumTasks"] == "4"


def test_cpus_of_a_node_are_shared_by_its_tasks(cluster: Cluster, workdir: Path) -> None:
    assert held(cluster, workdir, {"cpus": 8}, "--ntasks-per-node=4")["CPUs/Task"] == "2"


def test_unknown_gpu_type_lists_what_the_cluster_has(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "true\n", resources={**TWO, "accelerators": "H100:2"})
    done = tl_slurm(cluster, "submit", path, cwd=workdir)
    assert done.returncode == 1
    assert done.stderr == "error: accelerators: this cluster has no GPU type 'H100'; it has l4\n"


def test_untyped_and_missing_gpus(make_cluster) -> None:
    untyped = make_cluster(nodes=2, gres="gpu:4")
    assert held(untyped, untyped.scratch, {"accelerators": "H100:2"})["TresPerNode"] in ("gres:gpu:2", "gres/gpu:2")
    none = make_cluster(nodes=2, gres="")
    done = tl_slurm(none, "submit", write_task(none.scratch, "true\n", resources={**TWO, "accelerators": "H100:2"}))
    assert done.returncode == 1
    assert "this cluster has no GPUs" in done.stderr


def test_partition_and_precedence_of_flags(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "true\n")

    def partition(*flags: str) -> str:
        done = tl_slurm(cluster, "submit", path, *flags, cwd=workdir, check=True)
        return job_fields(cluster, done.stdout.strip())["Partition"]

    assert partition() == "debug"
    assert partition("--partition", "short") == "short"
    assert partition("--user-sbatch-flags", "-p short") == "short"
    assert partition("--user-sbatch-flags", "-p short", "--sbatch-flags", "--hold") == "debug"
    assert partition("--partition", "short", "--sbatch-flags", "-p debug") == "debug"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--partition", "nowhere"], "nvalid partition name specified"),
        (
            ["--set", "resources.num_nodes=99"],
            "the partition has 3 nodes: allocation failure: Requested node configuration is not available",
        ),
        (["--sbatch-flags", "--gres=warp:1"], "nvalid generic resource"),
        (["--sbatch-flags", "--no-such-flag"], "--no-such-flag is no option of sbatch"),
        (["--sbatch-flags", "--account=nobody --qos=nothing --time=forever"], "time"),
    ],
    ids=["partition", "99 nodes", "GRES", "flag", "time"],
)
def test_rejections_are_one_line_in_slurms_words(
    cluster: Cluster, workdir: Path, arguments: list[str], words: str
) -> None:
    before = job_ids(cluster)
    done = tl_slurm(cluster, "submit", write_task(workdir, "true\n"), *arguments, cwd=workdir)
    assert done.returncode == 1
    assert done.stdout == ""
    assert any(word in done.stderr for word in words.split("|")), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert job_ids(cluster) <= before  # Slurm forgets old ones
    assert files_left(cluster, workdir) == []
    assert [path.name for path in workdir.iterdir()] == ["task.yaml"]


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"num_nodes": 0}, "task.yaml:3:14: resources.num_nodes: must be an integer >= 1, not 0"),
        ({"num_nodes": -1}, "task.yaml:3:14: resources.num_nodes: must be an integer >= 1, not -1"),
        ({"num_nodes": "two"}, "task.yaml:3:14: resources.num_nodes: must be an integer >= 1, not 'two'"),
    ],
)
def test_bad_num_nodes_names_the_place(
    cluster: Cluster, workdir: Path, resources: dict[str, object], message: str
) -> None:
    done = tl_slurm(cluster, "submit", write_task(workdir, "true\n", resources={"provider": "slurm", **resources}))
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_another_provider_is_a_clear_error(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "true\n", resources={"provider": "runpod", "num_nodes": 2})
    done = tl_slurm(cluster, "submit", path)
    assert done.returncode == 1
    assert "runpod" in done.stderr
    assert "only slurm and skypilot run several nodes" in done.stderr


def test_no_slurm_client(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "true\n")
    done = tl_slurm(cluster, "submit", path, "--backend=sbatch", env={"PATH": "/nonexistent"})
    assert done.returncode == 1
    assert done.stderr.startswith("error: sbatch is not installed here: run this on a login node")


def test_test_only(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "true\n")
    before = job_ids(cluster)
    done = tl_slurm(cluster, "submit", path, "--test-only", cwd=workdir)
    assert done.returncode == 0
    assert done.stdout.startswith("would start at 20")
    as_json = json.loads(tl_slurm(cluster, "submit", path, "--test-only", "--json", cwd=workdir).stdout)
    assert as_json["accepted"] is True
    assert as_json["partition"] == "debug"
    refused = tl_slurm(cluster, "submit", path, "--test-only", "--sbatch-flags", "--mem=900G", cwd=workdir)
    assert refused.returncode == 1
    assert "node configuration is not available" in refused.stderr
    assert job_ids(cluster) <= before  # Slurm forgets old ones


def test_follow_shows_the_queue_then_the_log(cluster: Cluster, workdir: Path) -> None:
    blocker = cluster.sbatch("sleep 3", "-N3", "--exclusive", cwd=workdir)
    wait_for(lambda: job_fields(cluster, blocker)["JobState"] == "RUNNING")
    done = follow(cluster, workdir, "for i in 1 2 3; do echo line $i; sleep 0.3; done\nprintf 'no newline'\nexit 4\n")
    assert done.returncode == 4
    assert done.stdout == "line 1\nline 2\nline 3\nno newline"
    states = [line.split(": ", 1)[1] for line in done.stderr.splitlines() if line.startswith("job ")]
    assert any(state.startswith("PENDING (Resources)") for state in states), done.stderr
    assert states[-1] == "FAILED (NonZeroExitCode), exit code 4"


def test_follow_json(cluster: Cluster, workdir: Path) -> None:
    done = follow(cluster, workdir, "echo to the log\n", "--json")
    facts = json.loads(done.stdout)
    assert facts["state"] == "succeeded"
    assert facts["exit_status"] == 0
    assert facts["backend"] == (BACKEND or "sbatch")
    assert "to the log" in done.stderr


def test_status_wait_logs_cancel(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "echo started\nsleep 60\n")
    job = tl_slurm(cluster, "submit", path, cwd=workdir, check=True).stdout.strip()
    wait_for(lambda: "started" in tl_slurm(cluster, "logs", job).stdout)
    assert tl_slurm(cluster, "status", job).stdout.startswith(f"job {job}: RUNNING\n  nodes  ")
    late = tl_slurm(cluster, "wait", job, "--timeout", "0.5")
    assert late.returncode == 124
    assert "RUNNING after 0.5 s" in late.stderr
    assert tl_slurm(cluster, "cancel", job).returncode == 0
    assert tl_slurm(cluster, "wait", job).returncode == 128 + 15
    status = json.loads(tl_slurm(cluster, "status", job, "--json").stdout)
    assert (status["state"], status["raw_state"]) == ("cancelled", "CANCELLED")
    followed = tl_slurm(cluster, "logs", "--follow", job)
    assert followed.returncode == 128 + 15
    assert followed.stdout.startswith("started\n")


def test_unknown_job(cluster: Cluster, workdir: Path) -> None:
    for command in (["status"], ["wait"], ["logs"], ["logs", "--follow"], ["cancel"]):
        done = tl_slurm(cluster, *command, "999999")
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert done.stderr.endswith("Invalid job id specified\n")
        assert done.stderr.count("\n") == 1
    done = tl_slurm(cluster, "status", "two; true")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_time_limit(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "true\n")
    done = tl_slurm(
        cluster, "submit", path, "--time-limit", "3600", "--sbatch-flags", "--hold", cwd=workdir, check=True
    )
    assert job_fields(cluster, done.stdout.strip())["TimeLimit"] == "01:00:00"


def test_set_changes_the_task(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "echo $SLURM_JOB_NUM_NODES $LR $SLURM_JOB_NAME\n", env_={"LR": "1"})
    done = tl_slurm(
        cluster, "submit", path, "--follow", "--set", "resources.num_nodes=3", "--set", "LR=0.1", "--set", "name=x y",
        cwd=workdir,
    )  # fmt: skip
    assert done.stdout == "3 0.1 x y\n"


def test_rendered_text_is_what_is_sent(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "true\n", resources={**TWO, "accelerators": "L4:1"})
    rendered = tl_slurm(cluster, "render", path, cwd=workdir, check=True).stdout
    job = tl_slurm(cluster, "submit", path, "--sbatch-flags", "--hold", cwd=workdir, check=True).stdout.strip()
    sent = cluster.run("scontrol", "write", "batch_script", job, "-", check=True).stdout
    sent = re.sub("# tl-multinode submission [0-9a-f]{16}\n", "\n", sent)  # finds the job should no answer come
    assert sent.replace("#SBATCH --hold\n", "").strip("\n") == rendered.strip("\n")


def test_interrupting_follow_leaves_the_job(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "echo started\nsleep 30\n")
    process = cluster.popen(
        PYTHON, "-m", "tl_slurm_adapter.cli", "submit", path, "--follow", cwd=workdir,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    job = job_id(subprocess.CompletedProcess([], 0, "", err))
    assert f"tl-slurm cancel {job}" in err
    assert job_fields(cluster, job)["JobState"] == "RUNNING"
    assert "Traceback" not in err


def test_follow_says_where_the_ranks_are(cluster: Cluster, workdir: Path) -> None:
    resources = {**TWO, "accelerators": "L4:2"}
    done = follow(cluster, workdir, "sleep 2\n", "--sbatch-flags", "--ntasks-per-node=2", resources=resources)
    table = [line.split() for line in done.stderr.splitlines() if "RUNNING" in line and "job" not in line]
    assert table == [
        [str(rank), f"{2 * rank}-{2 * rank + 1}", node, node, "2", "l4", "RUNNING"]
        for rank, node in enumerate(cluster.nodes[:2])
    ]
