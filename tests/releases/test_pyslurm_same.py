"""pyslurm and the sbatch command say the same: what they leave in Slurm, and in the job, is compared field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import PYTHON, wait_for

# One request a line, as keyword arguments of submit(); each is submitted once a way.
REQUESTS = r"""
num_nodes=1
num_nodes=2
num_nodes=3
num_nodes=2, sbatch_flags="-n4"
num_nodes=2, sbatch_flags="-n5"
num_nodes=2, sbatch_flags="--ntasks-per-node=2"
num_nodes=2, sbatch_flags="-n4 --ntasks-per-node=2"
num_nodes=2, sbatch_flags="-c2"
num_nodes=2, sbatch_flags="-n4 -c2"
num_nodes=2, sbatch_flags="--ntasks-per-node=2 -c3"
num_nodes=1, sbatch_flags="-c4"
num_nodes=2, sbatch_flags="--ntasks-per-core=1 -n4"
num_nodes=2, sbatch_flags="--ntasks-per-socket=2 -n4"
num_nodes=1, sbatch_flags="--threads-per-core=1"
num_nodes=1, sbatch_flags="--sockets-per-node=1 --cores-per-socket=2"
num_nodes=2, sbatch_flags="--overcommit -n4"
num_nodes=2, sbatch_flags="-m block:cyclic:cyclic -n4"
num_nodes=2, sbatch_flags="-m cyclic:block:fcyclic,NoPack -n4"
num_nodes=2, sbatch_flags="-m plane=2 -n4"
num_nodes=2, accelerators="l4:2"
num_nodes=2, accelerators={"l4": 1}
num_nodes=2, cpus=4, memory=2
num_nodes=2, cpus=8, sbatch_flags="--ntasks-per-node=4"
num_nodes=2, accelerators="l4:2", cpus=4, memory=1.5, time_limit_seconds=3600
num_nodes=2, sbatch_flags="--gpus=4"
num_nodes=2, sbatch_flags="--gpus=l4:4"
num_nodes=2, sbatch_flags="--gpus-per-node=l4:1"
num_nodes=1, sbatch_flags="--gres=gpu:2"
num_nodes=1, sbatch_flags="--gres=gpu"
num_nodes=1, sbatch_flags="--gpus-per-node=1 --mem-per-gpu=300"
num_nodes=2, sbatch_flags="--gpus-per-task=1 -n2"
num_nodes=2, sbatch_flags="--gpus-per-task=l4:2 --ntasks-per-node=1 -c2"
num_nodes=1, sbatch_flags="--core-spec=1"
num_nodes=1, sbatch_flags="--thread-spec=1"
num_nodes=2, sbatch_flags="--segment=1"
num_nodes=1, sbatch_flags="--batch=fast -C fast"
num_nodes=1, sbatch_flags="--mcs-label=lab"
num_nodes=1, sbatch_flags="--gres-flags=disable-binding --gres=gpu:l4:1"
num_nodes=1, sbatch_flags="--gpus-per-socket=1 --sockets-per-node=1"
num_nodes=1, sbatch_flags="--gres=gpu:1 --gres-flags=enforce-binding"
num_nodes=2, sbatch_flags="--mem=1500M"
num_nodes=2, sbatch_flags="--mem=1G"
num_nodes=2, sbatch_flags="--mem=1500k"
num_nodes=2, sbatch_flags="--mem-per-cpu=100"
num_nodes=1, sbatch_flags="--exclusive"
num_nodes=1, sbatch_flags="--exclusive=user"
num_nodes=1, sbatch_flags="--oversubscribe"
num_nodes=1, sbatch_flags="--contiguous --use-min-nodes --spread-job"
num_nodes=1, sbatch_flags="--array=0-3"
num_nodes=2, sbatch_flags="--array=1,5,9%2 -o %A.%a.log"
num_nodes=1, sbatch_flags="--dependency=singleton", job_name="one"
num_nodes=1, sbatch_flags="--dependency=afterany:1 --kill-on-invalid-dep=yes"
num_nodes=1, requeue=True
num_nodes=1, sbatch_flags="--no-requeue"
num_nodes=1, sbatch_flags="--no-kill"
num_nodes=1, sbatch_flags="--no-kill=off"
num_nodes=1, sbatch_flags="--signal=USR1"
num_nodes=1, sbatch_flags="--signal=B:SIGTERM@90"
num_nodes=1, sbatch_flags="--signal=12@30"
num_nodes=2, sbatch_flags="--constraint=fast"
num_nodes=1, sbatch_flags="--constraint='fast&big'"
num_nodes=1, sbatch_flags="--constraint='[fast|big]'"
num_nodes=1, sbatch_flags='--comment="two words"'
num_nodes=1, sbatch_flags="--comment='say \"hi\" # now' "
num_nodes=1, sbatch_flags="--comment=äöü"
num_nodes=1, job_name="two words"
num_nodes=1, job_name="$(touch x);'"
num_nodes=1, partition="short"
num_nodes=1, sbatch_flags="-p debug,short"
num_nodes=1, sbatch_flags="-t 30"
num_nodes=1, sbatch_flags="-t 0"
num_nodes=1, sbatch_flags="-t 1-2:30"
num_nodes=1, sbatch_flags="-t 10:01"
num_nodes=1, sbatch_flags="-t unlimited --time-min=5"
num_nodes=1, time_limit_seconds=61
num_nodes=1, sbatch_flags="--begin=2030-01-01T10:00:00"
num_nodes=1, sbatch_flags="--deadline=2030-01-01T10:00:00 -t 5"
num_nodes=1, sbatch_flags="--nice"
num_nodes=1, sbatch_flags="--nice=7"
num_nodes=1, sbatch_flags="--priority=9"
num_nodes=2, sbatch_flags="-w {first},{second}"
num_nodes=2, sbatch_flags="-x {first}"
num_nodes=1, sbatch_flags="--chdir=/var"
num_nodes=1, sbatch_flags="--output=out.%j --error=err.%j --open-mode=append"
num_nodes=1, sbatch_flags="-i /dev/zero -o /dev/null"
num_nodes=1, sbatch_flags="--mail-type=END,FAIL,TIME_LIMIT_90 --mail-user=someone"
num_nodes=1, sbatch_flags="--mail-type=none"
num_nodes=1, sbatch_flags="--licenses=matlab:2"
num_nodes=1, sbatch_flags="--account=team --qos=normal --wckey=key"
num_nodes=1, sbatch_flags="--extra=tag --network=none"
num_nodes=1, sbatch_flags="--acctg-freq=20"
num_nodes=1, sbatch_flags="--acctg-freq=task=20,network=30"
num_nodes=1, sbatch_flags="--profile=task,energy"
num_nodes=1, sbatch_flags="--wait-all-nodes=1"
num_nodes=1, sbatch_flags="--wait-all-nodes=0"
num_nodes=1, sbatch_flags="--delay-boot=5"
num_nodes=1, sbatch_flags="--reboot"
num_nodes=1, sbatch_flags="--tmp=0"
num_nodes=1, sbatch_flags="--export=NONE"
num_nodes=1, sbatch_flags="--export=NIL"
num_nodes=1, sbatch_flags="--export=ALL"
num_nodes=1, sbatch_flags="--export=KEPT,SET=1"
num_nodes=1, sbatch_flags="--export=ALL,SET=a=b"
num_nodes=1, sbatch_flags="--get-user-env"
num_nodes=2, env={"A": "it's $HOME", "B": "x" * 5000}
num_nodes=2, launch="per-node"
""".strip().splitlines()

# Another one in every job.
OWN_FIELDS = {"SubmitTime", "EligibleTime", "AccrueTime", "LastSchedEval", "StartTime", "EndTime", "Deadline"}
OWN_VARIABLES = {
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "SLURM_JOB_SLUID", "SLURM_TASK_PID", "SLURM_JOB_START_TIME",
    "SLURM_JOB_END_TIME",
}  # fmt: skip
# Where Slurm happened to put it.
PLACE = {
    "SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURMD_NODENAME", "HOSTNAME", "SLURM_TOPOLOGY_ADDR", "SLURM_JOB_GPUS",
    "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "MASTER_ADDR",
    "MASTER_PORT", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ID", "SLURM_TASK_PROLOG", "SLURM_SRUN_COMM_PORT",
    "SLURM_STEP_LAUNCHER_PORT",
}  # fmt: skip
# How uneven it spread what may be spread unevenly depends on what else was running.
UNEVEN = ("-n4", "-n5", "--gpus=", "--gres-flags")
SPREAD = {
    "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_GPUS_ON_NODE", "max memory size",
}  # fmt: skip
# Differences that docs/slurm-releases.md lists, each with its reason.
LISTED_FIELDS = {"SubmitLine", "OOMKillStep", "TresPerTask"}
LISTED_VARIABLES = {"SLURM_ACCTG_FREQ"}
LISTED_PER_TASK = {"TresBind", "SLURM_TRES_PER_TASK"}  # with --gpus-per-task
# A job with one of these would not start, would restart the node, write elsewhere, or run the script on every node.
NEVER_RUN = ("--begin", "--reboot", "--chdir", "per-node")
# Submits every request both ways, held and as they are, in one process of the login host.
SUBMIT_ALL = """
import json, sys
from tl_slurm_adapter import submit
run, requests = json.load(sys.stdin)
answers = []
for text in requests:
    answers.append([])
    for backend in ("sbatch", "pyslurm"):
        arguments = eval(f"dict({text})")
        try:
            job = submit(run, backend=backend, **arguments)
            assert job.backend == backend and not job.note
            answers[-1].append(job.job_id)
        except Exception as error:
            answers[-1].append(f"{type(error).__name__}: {error}")
print(json.dumps(answers))
"""
WHOLE_LINE = ("Comment=", "Extra=", "JobName=", "StdIn=", "StdOut=", "StdErr=", "WorkDir=", "SubmitLine=")
Fields = dict[str, str]


@pytest.fixture(scope="module")
def featured() -> Iterator[Cluster]:
    """A cluster with features and licences."""
    extra = "Licenses=matlab:4\nNodeSet=all Feature=fast\n"
    with Cluster({"nodes": 3, "extra_conf": extra}) as started:
        for node in started.nodes:
            started.run("scontrol", "update", f"nodename={node}", "features=fast,big", check=True)
        yield started


def submit_both(cluster: Cluster, run: str, requests: list[str], workdir: Path) -> list[tuple[str, str]]:
    """The two job ids, or errors, of each request."""
    first, second = cluster.nodes[:2]
    texts = [text.replace("{first}", first).replace("{second}", second) for text in requests]
    env = {"KEPT": "kept value", "SLURM_JOB_ID": "777", "SLURM_PROCID": "3", "RANK": "9", "PYTHONSAFEPATH": "1"}
    done = cluster.run(
        PYTHON, "-c", SUBMIT_ALL, input=json.dumps([run, texts]), cwd=workdir, env=env, timeout=100, check=True
    )
    return [(a, b) for a, b in json.loads(done.stdout)]


def fields(cluster: Cluster, job: str) -> Fields:
    """`scontrol show job`, without what is another one in every job; in file names the job's own number is %."""
    text = cluster.run("scontrol", "show", "job", job, check=True).stdout.split("\n\n")[0]
    found: Fields = {}
    for line in text.splitlines():
        # what can hold blanks and equal signs (Comment, Extra, file names) has a line of its own
        pairs = re.findall(r"(\S+?)=(.*?)(?= [A-Za-z:/]+=|$)", line.strip())
        found.update(pairs if not line.strip().startswith(WHOLE_LINE) else [line.strip().split("=", 1)])
    for name in ("StdOut", "StdErr"):
        found[name] = re.sub(rf"(?<=\D){job}(?=\D|$)", "%", found.get(name, ""))
    if "TresPerNode" in found:
        found["TresPerNode"] = re.sub(r"^gres/gpu$", "gres/gpu:1", found["TresPerNode"])
    assert found.pop("JobId").split()[0] == job
    return {name: value for name, value in found.items() if name not in OWN_FIELDS | {"ArrayJobId"}}


def differences(
    requests: list[str], both: list[tuple[str, str]], read: Callable[[str], Fields], listed: set[str]
) -> list[str]:
    """What differs between the two jobs of each request, as text."""
    problems = []
    for request, (sbatch, pyslurm) in zip(requests, both, strict=True):
        if not (sbatch.isdigit() and pyslurm.isdigit()):
            problems.append(f"{request}: sbatch {sbatch}, pyslurm {pyslurm}")
            continue
        one, two = read(sbatch), read(pyslurm)
        ignored = listed | (SPREAD if any(flag in request for flag in UNEVEN) else set())
        ignored |= LISTED_PER_TASK if "--gpus-per-task" in request else set()
        problems += [
            f"{request}: {name}: sbatch {one.get(name)}, pyslurm {two.get(name)}"
            for name in sorted((one.keys() | two.keys()) - ignored)
            if one.get(name) != two.get(name)
        ]
    return problems


def with_flags(request: str, flags: str) -> str:
    found = re.search(r"sbatch_flags=(['\"])", request)
    return (
        f"{request[: found.end()]}{flags} {request[found.end() :]}" if found else f"{request}, sbatch_flags={flags!r}"
    )


def test_slurm_keeps_the_same_job(featured: Cluster) -> None:
    assert len(REQUESTS) >= 60
    requests = [with_flags(request, "--hold") for request in REQUESTS]
    both = submit_both(featured, "hostname\n", requests, featured.scratch)
    problems = differences(requests, both, lambda job: fields(featured, job), LISTED_FIELDS)
    featured.cancel_all()
    assert problems == [], "\n".join(problems)


def test_the_batch_script_finds_the_same_environment(featured: Cluster) -> None:
    requests = [request for request in REQUESTS if not any(flag in request for flag in NEVER_RUN)]
    script = f'''
    {{ env -0; for kind in S H; do ulimit -a$kind | tr '\\n' '\\0'; done; echo "umask=$(umask) pwd=$(pwd) nice=$(nice)"
    }} > "{featured.scratch}/env.${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}.$SLURM_ARRAY_TASK_ID"
    '''
    both = submit_both(featured, script, requests, featured.scratch)
    wait_for(lambda: not featured.run("squeue", "--noheader", "--format=%i").stdout.split(), 120)

    def read(job: str) -> Fields:
        path = min(featured.scratch.glob(f"env.{job}.*"))  # of an array, the first element
        items = [item.partition("=") for item in path.read_text().split("\0")]
        limits = {name.partition("(")[0].strip(): name for name, equals, _ in items if not equals}
        return {**{name: value for name, equals, value in items if equals}, **limits}

    problems = differences(requests, both, read, OWN_VARIABLES | PLACE | LISTED_VARIABLES)
    assert problems == [], "\n".join(problems)
