"""Jobs through the real slurmrestd: the same meaning as through sbatch, option by option and version by version."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from slurm_jobs import PROBE, files_left, probes

from shared_env import derive_port
from tl_slurm_adapter import BatchRequest, SubmitError, newest_api_version, parse_rest_response, rest_payload
from tl_slurm_adapter.option_table import TABLE
from tl_slurm_adapter.options import parse_flags
from tl_slurm_adapter.rest_fields import NEWEST, OLDEST, job_fields, number_of

VERSIONS = range(OLDEST, NEWEST + 1)
# Runs on the login host: many requests, each [method, path, body], in one process.
CLIENT = """
import json, sys, urllib.error, urllib.request
base, token = sys.argv[1:]
headers = {"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": token, "Content-Type": "application/json"}
answers = []
for method, path, body in json.load(sys.stdin):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(base + path, data, headers, method=method)) as answer:
            answers.append(json.load(answer))
    except urllib.error.HTTPError as error:
        answers.append(json.load(error))
json.dump(answers, sys.stdout)
"""


class Rest:
    """A cluster with slurmrestd."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        token = cluster.run("scontrol", "token", "lifespan=3600", check=True).stdout
        self._token = token.strip().removeprefix("SLURM_JWT=")
        (self.openapi,) = self.ask([("GET", "/openapi", None)])
        found = (re.fullmatch(r"/slurm/(v0\.0\.\d+)/job/submit/?", path) for path in self.openapi["paths"])
        self.versions = sorted(match[1] for match in found if match)
        self.newest = newest_api_version(self.openapi)

    def ask(self, requests: list[tuple[str, str, Any]]) -> list[dict[str, Any]]:
        done = self.cluster.run(
            sys.executable, "-c", CLIENT, f"http://{self.cluster.login}:6820", self._token,
            input=json.dumps(requests), check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    def submit(self, *bodies: dict[str, Any], version: str | None = None) -> list[dict[str, Any]]:
        return self.ask([("POST", f"/slurm/{version or self.newest}/job/submit", body) for body in bodies])

    def fields_of(self, version: str) -> set[str]:
        """The fields of a job that the OpenAPI document names."""
        schemas = self.openapi["components"]["schemas"]

        def resolve(node: dict[str, Any]) -> dict[str, Any]:
            while "$ref" in node:
                node = schemas[node["$ref"].rpartition("/")[2]]
            return node

        (path,) = (path for path in self.openapi["paths"] if path.rstrip("/") == f"/slurm/{version}/job/submit")
        body = self.openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return set(resolve(resolve(body)["properties"]["job"])["properties"])


@pytest.fixture(scope="module")
def rest(_cluster_possible: None) -> Iterator[Rest]:
    with Cluster({"rest": 1, "extra_conf": "Licenses=lic:4"}) as started:
        for node in started.nodes:
            started.run("scontrol", "update", f"nodename={node}", "features=fast", check=True)
        started.run(
            "scontrol", "create", "reservation", "reservationname=kept", "users=root", "nodes=ALL", "duration=60",
            "starttime=2036-01-01", check=True,  # jobs without a time limit count as one year
        )  # fmt: skip
        yield Rest(started)


@pytest.fixture
def directory(rest: Rest) -> Path:
    return Path(tempfile.mkdtemp(dir=rest.cluster.scratch))


# --- jobs that run --------------------------------------------------------------------------------------------------


def test_a_job_gets_its_nodes_its_tasks_and_the_six(rest: Rest, directory: Path) -> None:
    cluster = rest.cluster
    for version in rest.versions:
        body = rest_payload(
            f"srun sh -c '{PROBE}'\necho nodes=$SLURM_JOB_NUM_NODES tasks=$SLURM_NTASKS\n",
            num_nodes=2, job_name="by rest", api_version=version, working_directory=str(directory),
            env={"VALUE": "it's $(touch made) 100%"},
        )  # fmt: skip
        job = parse_rest_response(rest.submit(body, version=version)[0])
        assert cluster.wait(job) == "COMPLETED"
        log = (directory / f"slurm-{job}.out").read_text()
        assert "nodes=2 tasks=2" in log
        found = probes(log)
        assert [(p.rank, p.local_rank, p.node_rank, p.world_size, p.host) for p in found] == [
            (rank, 0, rank, 2, cluster.nodes[rank]) for rank in (0, 1)
        ], version
        assert {(p.master_addr, p.master_port) for p in found} == {(cluster.nodes[0], derive_port(int(job)))}
        shown = cluster.run("scontrol", "show", "job", job).stdout
        assert f"WorkDir={directory}" in shown
        assert "JobName=by rest" in shown
    assert files_left(cluster, directory) == []
    assert not (directory / "made").exists()


def test_options_become_fields_and_not_lines_only(rest: Rest, directory: Path) -> None:
    body = rest_payload(
        f"#SBATCH --output=pasted.log\nsrun sh -c '{PROBE}'\n",
        num_nodes=2, sbatch_flags="--ntasks-per-node=2 --time=5", api_version=rest.newest,
        working_directory=str(directory),
    )  # fmt: skip
    job = parse_rest_response(rest.submit(body)[0])
    assert rest.cluster.wait(job) == "COMPLETED"
    assert [(p.rank, p.local_rank) for p in probes((directory / "pasted.log").read_text())] == [
        (0, 0), (1, 1), (2, 0), (3, 1),
    ]  # fmt: skip
    assert "TimeLimit=00:05:00" in rest.cluster.run("scontrol", "show", "job", job).stdout


def test_the_environment_is_what_was_given(rest: Rest, directory: Path) -> None:
    given = {"KEPT": "a=b 'c' \"d\" é", "RANK": "7", "SLURM_JOB_ID": "1", "HOME": str(directory)}
    script = "/usr/bin/env -0 > batch.env\n"
    for version in rest.versions:
        body = rest_payload(script, api_version=version, environment=given)
        assert rest.cluster.wait(parse_rest_response(rest.submit(body, version=version)[0])) == "COMPLETED"
        seen = dict(item.split("=", 1) for item in (directory / "batch.env").read_text().split("\0") if item)
        assert seen["KEPT"] == given["KEPT"]
        assert seen["PATH"] == "/usr/local/bin:/usr/bin:/bin"
        assert seen["SLURM_SUBMIT_DIR"] == str(directory)
        assert seen["SLURM_JOB_ID"] != "1"
        assert "RANK" not in seen


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"partition": "nowhere"}, "Invalid partition name specified"),
        ({"sbatch_flags": "--gres=gpu:l4:9"}, "Requested node configuration is not available"),
        ({"sbatch_flags": "--constraint=missing"}, "Invalid feature specification"),
        ({"sbatch_flags": "--reservation=missing"}, "Requested reservation is invalid"),
    ],
    ids=["partition", "gres", "constraint", "reservation"],
)
def test_a_rejection_raises_with_slurms_words(rest: Rest, request_: dict[str, Any], words: str) -> None:
    before = rest.cluster.run("squeue", "--noheader", "--format=%i").stdout
    (answer,) = rest.submit(rest_payload("true", api_version=rest.newest, **request_))
    with pytest.raises(SubmitError, match=f"Slurm did not take the job: .*{words}"):
        parse_rest_response(answer)
    assert rest.cluster.run("squeue", "--noheader", "--format=%i").stdout == before


def test_an_answer_without_id_and_without_error_raises() -> None:
    with pytest.raises(SubmitError, match="no job id"):
        parse_rest_response({"meta": {}})


# --- the same meaning -----------------------------------------------------------------------------------------------

# For every option that a task may give: flags with it.
SAMPLES = {
    "account": "--account=x",
    "acctg-freq": "--acctg-freq=30",
    "array": "--array=0-3%2",
    "batch": "--batch=fast --constraint=fast",
    "bb": "--bb=x",
    "begin": "--begin=2030-01-02T03:04:05",
    "chdir": "--chdir=/var",
    "cluster-constraint": "--cluster-constraint=x",
    "comment": '--comment="it\'s"\' "two"  #words\'',
    "constraint": "--constraint=fast",
    "container": "--container=/x",
    "container-id": "--container-id=x",
    "context": "--context=x",
    "contiguous": "--contiguous",
    "core-spec": "--core-spec=1",
    "cpu-freq": "--cpu-freq=low",
    "cpus-per-gpu": "--cpus-per-gpu=2 --gpus=1",
    "cpus-per-task": "--cpus-per-task=3",
    "deadline": "--deadline=2030-01-02",
    "delay-boot": "--delay-boot=5",
    "dependency": "--dependency=singleton",
    "distribution": "--distribution=cyclic",
    "error": "--error=%j.err",
    "exclude": "--exclude={}1",
    "exclusive": "--exclusive",
    "extra": "--extra=x",
    "gpu-bind": "--gpu-bind=closest --gpus-per-node=1",
    "gpu-freq": "--gpu-freq=low --gpus-per-node=1",
    "gpus": "--gpus=l4:2",
    "gpus-per-node": "--gpus-per-node=l4:2",
    "gpus-per-socket": "--gpus-per-socket=1 --sockets-per-node=1",
    "gpus-per-task": "--gpus-per-task=l4:1 --ntasks=2",
    "gres": "--gres=gpu:l4:2",
    "gres-flags": "--gres-flags=enforce-binding",
    "hold": "--hold",
    "input": "--input=/dev/null",
    "job-name": "--job-name='two words'",
    "kill-on-invalid-dep": "--kill-on-invalid-dep=yes",
    "licenses": "--licenses=lic:2",
    "mail-type": "--mail-type=END,TIME_LIMIT_80,INVALID_DEPEND",
    "mail-user": "--mail-user=somebody --mail-type=ALL",
    "mcs-label": "--mcs-label=x",
    "mem": "--mem=2G",
    "mem-bind": "--mem-bind=local",
    "mem-per-cpu": "--mem-per-cpu=300",
    "mem-per-gpu": "--mem-per-gpu=1G --gpus=1",
    "mincpus": "--mincpus=4",
    "network": "--network=x",
    "nice": "--nice=7",
    "no-kill": "--no-kill",
    "no-requeue": "--no-requeue",
    "nodelist": "--nodelist={}2",
    "nodes": "--nodes=2",
    "ntasks": "--ntasks=3",
    "ntasks-per-core": "--ntasks-per-core=1",
    "ntasks-per-gpu": "--ntasks-per-gpu=1 --gpus=2",
    "ntasks-per-node": "--ntasks-per-node=2",
    "ntasks-per-socket": "--ntasks-per-socket=1",
    "ntasks-per-tres": "--ntasks-per-tres=1 --gpus=2",
    "open-mode": "--open-mode=append",
    "output": "--output=%x-%j.log",
    "overcommit": "--overcommit",
    "oversubscribe": "--oversubscribe",
    "partition": "--partition=short",
    "prefer": "--prefer=fast",
    "priority": "--priority=5 --begin=2030-01-02",
    "profile": "--profile=task,energy",
    "qos": "--qos=normal",
    "reboot": "--reboot",
    "requeue": "--requeue",
    "reservation": "--reservation=kept",
    "signal": "--signal=USR1@90",
    "sockets-per-node": "--sockets-per-node=1",
    "spread-job": "--spread-job",
    "switches": "--switches=1@5",
    "thread-spec": "--thread-spec=1",
    "threads-per-core": "--threads-per-core=1",
    "time": "--time=1-02:03:04",
    "time-min": "--time-min=5 --time=10",
    "tmp": "--tmp=10",
    "tres-bind": "--tres-bind=gres/gpu:closest --gpus=1",
    "tres-per-task": "--tres-per-task=cpu=2 --ntasks=2",
    "use-min-nodes": "--use-min-nodes",
    "wait-all-nodes": "--wait-all-nodes=1",
    "wckey": "--wckey=x",
}
MORE = [
    "--cpus-per-task=3 --gpus-per-task=l4:1 --ntasks=2",
    "--ntasks-per-node=2 --gpus-per-task=1 --gpu-bind=none",
    "--exclusive=user",
    "--signal=B:USR1@90",
    "--time=90",
    "--time=5:30",
    "--time=UNLIMITED",
    "--mem=0",
    "--nice",
    "--gres=gpu:l4:1 --array=1,3,5",
    "--switches=2",
    "--kill-on-invalid-dep=no",
    "--gres-flags=disable-binding",
    "--export=NONE",
]
NEVER = {
    "bbf", "clusters", "consolidate-segments", "container-type", "cores-per-socket", "export-file", "extra-node-info",
    "get-user-env", "hint", "mem-update", "nodefile", "oom-kill-step", "power", "propagate", "resources", "resv-ports",
    "segment", "spread-segments", "stepmgr",
}  # fmt: skip
ONLY_39_ON = {
    "batch", "container-id", "context", "contiguous", "extra", "network", "ntasks-per-tres", "overcommit", "reboot",
    "switches", "tres-bind", "tres-per-task",
}  # fmt: skip
ONLY_38_ON = {"container", "mcs-label", "oversubscribe", "prefer", "time-min"}
# Text of the client, identity, and moments; none of them is a property of the job.
NOT_COMPARED = {
    "JobId",
    "ArrayJobId",
    "SubmitTime",
    "AccrueTime",
    "AllocNode:Sid",
    "LastSchedEval",
    "SubmitLine",
    "SLUID",
    "OOMKillStep",
    "Command",
    "Reason",
}


def cannot(name: str, version: int) -> bool:
    return (
        name in NEVER
        or (name in ONLY_39_ON and version < 39)
        or (name in ONLY_38_ON and version < 38)
        or (name == "priority" and version < 37)
        or (name == "distribution" and version in (39, 40))
    )


def test_every_option_is_a_field_or_an_error_that_names_it() -> None:
    for name, spec in TABLE.items():
        if spec.refused or name == "export":
            continue
        flags = SAMPLES.get(name) or f"--{name}" + ("=1" if spec.kind == "required" else "")
        for version in VERSIONS:
            (option,) = (option for option in parse_flags(flags.replace("{}", "n")) if option.name == name)
            if cannot(name, version):
                with pytest.raises(ValueError, match=f"--{name}.* cannot be submitted through REST: .*; remove it"):
                    job_fields([option], version)
            else:
                assert job_fields([option], version), (name, version)
    assert set(SAMPLES) == {name for name, spec in TABLE.items() if not spec.refused} - NEVER - {"export"}


def test_fields_are_those_of_the_openapi_document(rest: Rest) -> None:
    """From v0.0.39 on slurmrestd ignores a field that it does not know; before, it refuses the job."""
    # Those of 22.05 take what the document of another of them names, and some that none names.
    of_text = {"nodelist", "exclude_nodes", "ntasks_per_gpu", "no_requeue", "profile", "temporary_disk_per_node"}
    of_text |= {field for version in rest.versions if version < "v0.0.39" for field in rest.fields_of(version)}
    for version in rest.versions:
        known = of_text if version < "v0.0.39" else rest.fields_of(version)
        for name, flags in SAMPLES.items():
            if not cannot(name, number_of(version)):
                options = parse_flags(flags.replace("{}", "n"))
                assert set(job_fields(options[:1], number_of(version))) <= known, (name, version)


def shown_jobs(cluster: Cluster) -> dict[str, dict[str, str]]:
    """What `scontrol show job` says of each job, without its id."""
    jobs = {}
    for text in cluster.run("scontrol", "show", "job", check=True).stdout.split("\n\n"):
        if not text.strip():
            continue
        job = re.search(r"JobId=(\d+)", text)[1]
        fields = {}
        for line in map(str.strip, text.splitlines()):
            for word in [line] if line.startswith(("Comment=", "SubmitLine=")) else line.split():
                key, _, value = word.partition("=")
                if key in ("StdOut", "StdErr"):
                    value = re.sub(rf"(?<!\d){job}(?!\d)(?=[^/]*$)", "JOB", value)
                if key not in NOT_COMPARED:
                    fields[key] = value
        jobs[job] = fields
    return jobs


def test_same_job_as_through_sbatch(rest: Rest, directory: Path) -> None:
    cluster = rest.cluster
    table = [flags.replace("{}", cluster.name) for flags in [*SAMPLES.values(), *MORE]]
    requests = {
        flags: BatchRequest("true", num_nodes=2 if flags.startswith("--nodes") else 1,
                            sbatch_flags=flags + ("" if "--hold" in flags or "--priority" in flags else " --hold"))
        for flags in table
    }  # fmt: skip
    by_sbatch: dict[str, str] = {}
    problems = []
    for version in rest.versions:
        number = number_of(version)
        bodies = {}
        for flags, request in requests.items():
            try:
                bodies[flags] = rest_payload(
                    "true", num_nodes=request.num_nodes, sbatch_flags=request.sbatch_flags, api_version=version,
                    environment={"PATH": "/usr/bin:/bin"}, working_directory=str(directory),
                )  # fmt: skip
            except ValueError as error:
                named = re.match(r"--([a-z-]+)", str(error))[1]
                if not (cannot(named, number) or (named == "signal" and "B:" in flags and number < 39)):
                    problems.append((version, flags, str(error)))
        answers = dict(zip(bodies, rest.submit(*bodies.values(), version=version), strict=True))
        for flags in bodies:
            if flags not in by_sbatch:
                done = cluster.run("sbatch", "--parsable", input=str(requests[flags]), cwd=directory)
                by_sbatch[flags] = done.stdout.strip() or done.stderr
        jobs = shown_jobs(cluster)
        for flags, answer in answers.items():
            try:
                ours = jobs[parse_rest_response(answer)]
            except SubmitError as error:
                problems.append((version, flags, str(error), by_sbatch[flags]))
                continue
            theirs = jobs.get(by_sbatch[flags], {"sbatch": by_sbatch[flags]})
            different = {
                key: (theirs.get(key), ours.get(key)) for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)
            }
            if version == "v0.0.40" and different.keys() == {"TresPerTask"} and "cpu" in flags:
                continue  # Slurm 23.11, which this version is for, keeps the CPUs of a task in their own field alone
            if different:
                problems.append((version, flags, different, [w.get("description") for w in answer.get("warnings", [])]))
    assert not problems, "\n".join(map(str, problems))
