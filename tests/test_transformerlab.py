"""Providers of the shape that Transformer Lab has, on the real cluster; and what its own tests look for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
import yaml
from cluster import Cluster
from slurm_jobs import EXAMPLES, PROBE, PYTHON, files_left, probes, sums
from test_remote_shell import Ssh, ssh  # noqa: F401
from test_rest import Rest, rest  # noqa: F401
from test_slurm_torchrun import SEED, code  # noqa: F401

from tl_slurm_adapter import SubmitError

sys.path.insert(0, str(EXAMPLES))

from transformerlab.models import ClusterConfig, JobConfig
from transformerlab.skypilot_provider import SkyPilotProvider, task_config
from transformerlab.slurm_provider import SLURMProvider

DOCUMENT = EXAMPLES.parent / "docs" / "transformer-lab.md"
ADDRESS = 'export MASTER_ADDR="${MASTER_ADDR:-$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)}"'
WORLD = 'export WORLD_SIZE="${WORLD_SIZE:-${SLURM_NTASKS:-2}}"'


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> SLURMProvider:
    """One whose transport only keeps the last command."""
    made = SLURMProvider(ssh_host="login", extra_config={})

    def keep(command: str) -> str:
        made.last = command
        return "Submitted batch job 123\n"

    monkeypatch.setattr(made, "_ssh_execute", keep)
    return made


# --- what Transformer Lab's tests look for --------------------------------------------------------------------------


def test_two_nodes(provider: SLURMProvider) -> None:
    config = ClusterConfig(
        run="srun python train.py", num_nodes=2, env_vars={"MASTER_PORT": "23456"}, setup="module load x"
    )
    result = provider.launch_cluster("train", config)
    assert result == {"cluster_name": "train", "job_id": "123", "message": "SLURM job submitted", "status": "submitted"}
    lines = provider.last.splitlines()
    for line in ("#SBATCH --job-name=train", "#SBATCH --nodes=2", "#SBATCH --ntasks=2", "#SBATCH --ntasks-per-node=1"):
        assert line in lines
    assert not any(line.startswith("#SBATCH --partition") for line in lines)
    assert [lines.index(line) for line in ("export MASTER_PORT=23456", "module load x", ADDRESS, WORLD)] == sorted(
        lines.index(line) for line in ("export MASTER_PORT=23456", "module load x", ADDRESS, WORLD)
    )
    assert lines[lines.index("# Main run command") + 1] == "srun python train.py"


def test_a_layout_in_the_flags_gets_no_other_beside_it(provider: SLURMProvider) -> None:
    flags = {"custom_sbatch_flags": "#SBATCH --ntasks-per-node=4\n--time=10"}
    provider.launch_cluster("train", ClusterConfig(run="srun true", num_nodes=2, provider_config=flags))
    assert "#SBATCH --ntasks-per-node=4\n" in provider.last
    assert "#SBATCH --time=10\n" in provider.last
    assert "#SBATCH --ntasks=" not in provider.last
    assert "${SLURM_NTASKS:-8}" in provider.last


@pytest.mark.parametrize("nodes", [None, 1])
@pytest.mark.parametrize("run", [None, "python train.py", "tfl-remote-trap -- 'python train.py'"])
def test_one_node_is_left_alone(provider: SLURMProvider, nodes: int | None, run: str | None) -> None:
    provider.launch_cluster("train", ClusterConfig(run=run, num_nodes=nodes))
    assert provider.last.splitlines()[-3:-1] == ["# Main run command", run or ":"]
    assert "MASTER_ADDR" not in provider.last
    assert "tfl-remote-trap()" not in provider.last


@pytest.mark.parametrize(
    ("custom", "user", "found"),
    [
        ("--time=1", "--time=2", "--time=1"),
        (None, "--time=2", "--time=2"),
        ("", "--time=2", "--time=2"),
        (None, None, None),
    ],
)
def test_flags_of_the_run_replace_those_of_the_user(
    provider: SLURMProvider, custom: str | None, user: str | None, found: str | None
) -> None:
    provider.extra_config = {"user_sbatch_flags": user and f"{user} --comment=user"}
    provider.submit_job("c", JobConfig(run="true", provider_config={"custom_sbatch_flags": custom}))
    assert re.findall(r"--time=\d", provider.last) == ([found] if found else [])
    assert ("--comment=user" in provider.last) == (found == user is not None)


@pytest.mark.parametrize(
    ("given", "default", "found"), [("gpu", "cpu", ["gpu"]), (None, "cpu", ["cpu"]), (None, None, [])]
)
def test_partition(provider: SLURMProvider, given: str | None, default: str | None, found: list[str]) -> None:
    provider.extra_config = {"default_partition": default}
    for launch in (
        lambda: provider.launch_cluster("c", ClusterConfig(run="true", provider_config={"partition": given})),
        lambda: provider.submit_job("c", JobConfig(run="true", provider_config={"partition": given})),
    ):
        launch()
        assert re.findall(r"^#SBATCH --partition=(.*)$", provider.last, re.M) == found


def test_resources_timeout_and_requeue(provider: SLURMProvider) -> None:
    provider.submit_job("c", JobConfig(run="true", job_name="two words", timeout=3600, num_nodes=None))
    assert '#SBATCH --job-name="two words"\n' in provider.last
    assert "#SBATCH --time=01:00:00\n" in provider.last
    assert "--requeue" not in provider.last
    config = ClusterConfig(run="true", accelerators="A100:2", cpus="8+", memory=64, num_nodes=2)
    provider.launch_cluster("c", config)
    for line in ("--gpus-per-node=A100:2", "--cpus-per-task=8", "--mem=64G", "--requeue"):
        assert f"#SBATCH {line}\n" in provider.last
    provider.launch_cluster("c", ClusterConfig(run="true", provider_config={"custom_sbatch_flags": "--no-requeue"}))
    assert "#SBATCH --requeue" not in provider.last


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_nodes": 0}, "num_nodes must be an integer >= 1, not 0"),
        (
            {"num_nodes": 2, "provider_config": {"custom_sbatch_flags": "--nodes=4"}},
            "--nodes=4 contradicts num_nodes: 2",
        ),
        ({"env_vars": {"NOT A NAME": "x"}}, "'NOT A NAME' is no variable name"),
        ({"env_vars": {"PORT": 8008}}, "PORT has the value 8008, which is no text"),
        ({"provider_config": {"custom_sbatch_flags": "--partitoin=x"}}, "did you mean --partition?"),
    ],
)
def test_a_bad_request_is_one_sentence_and_nothing_is_sent(
    provider: SLURMProvider, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        provider.launch_cluster("c", ClusterConfig(**{"run": "true", **config}))
    assert "\n" not in str(raised.value)
    assert not hasattr(provider, "last")


def test_a_rejection_is_slurms_words(provider: SLURMProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    monkeypatch.setattr(provider, "_ssh_execute", lambda command: answer)
    with pytest.raises(SubmitError) as raised:
        provider.launch_cluster("c", ClusterConfig(run="true"))
    assert str(raised.value) == (
        "Slurm did not take the job: Batch job submission failed: Invalid partition name specified"
    )


def test_worker_threads(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    provider = SLURMProvider(ssh_host="login")
    monkeypatch.setattr(provider, "_ssh_execute", lambda command: re.findall(r"--job-name=(\d+)", command)[0])
    before = (dict(os.environ), Path.cwd())
    with ThreadPoolExecutor(16) as pool:
        config = ClusterConfig(run="srun torchrun --node_rank=$NODE_RANK x.py", num_nodes=2)
        results = list(pool.map(lambda i: provider.launch_cluster(str(i), config), range(1000, 1200)))
    assert [(r["cluster_name"], r["job_id"]) for r in results] == [(str(i), str(i)) for i in range(1000, 1200)]
    assert (dict(os.environ), Path.cwd()) == before
    assert capfd.readouterr() == ("", "")


# --- on the real cluster --------------------------------------------------------------------------------------------

RANKS = [(0, 0, 0, 2), (1, 0, 1, 2)]


def test_through_ssh(cluster: Cluster, workdir: Path, ssh: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    provider = SLURMProvider(ssh_host="login", extra_config={"user_sbatch_flags": f"--chdir={workdir} --output=log"})
    monkeypatch.setattr(provider, "_ssh_execute", lambda command: ssh(command).stdout)
    result = provider.launch_cluster("by ssh", ClusterConfig(run=f"srun sh -c '{PROBE}'", num_nodes=2))
    assert cluster.wait(result["job_id"]) == "COMPLETED"
    assert [p[:4] for p in probes((workdir / "log").read_text())] == RANKS
    with pytest.raises(SubmitError, match="nvalid partition name specified"):
        provider.launch_cluster("c", ClusterConfig(run="true", provider_config={"partition": "nowhere"}))
    assert files_left(cluster, workdir) == []


def on_login_host(cluster: Cluster, program: str, cwd: Path, **kwargs: Any) -> Any:
    """Run a program with the providers there; its last expression, given to `out`, comes back."""
    head = (
        "import json, sys\nfrom transformerlab.models import *\nfrom transformerlab.slurm_provider import *\n"
        "out = lambda value: print(json.dumps(value))\n"
    )
    env = {"PYTHONPATH": str(EXAMPLES), **kwargs.pop("env", {})}
    done = cluster.run(PYTHON, "-c", head + program, cwd=cwd, env=env, check=True, **kwargs)
    return json.loads(done.stdout)


def test_through_slurmrestd(rest: Rest) -> None:  # noqa: F811
    where = str(rest.cluster.scratch)
    settings = {"mode": "rest", "rest_url": f"http://{rest.cluster.login}:6820", "api_token": rest._token}
    program = (
        f"provider = SLURMProvider(**{settings!r}, extra_config={{'working_directory': {where!r}}})\n"
        f"run = {f'srun sh -c {quote(PROBE)}'!r}\n"
        "result = provider.launch_cluster('by rest', ClusterConfig(run=run, num_nodes=2, env_vars={'A': 'b'}))\n"
        "try: provider.submit_job('c', JobConfig(run='true', provider_config={'partition': 'nowhere'}))\n"
        "except SubmitError as error: result['error'] = str(error)\n"
        "out(result)\n"
    )
    result = on_login_host(rest.cluster, "from tl_slurm_adapter import SubmitError\n" + program, rest.cluster.scratch)
    assert result["error"].startswith("Slurm did not take the job: Invalid partition name specified")
    assert rest.cluster.wait(result["job_id"]) == "COMPLETED"
    log = (rest.cluster.scratch / f"slurm-{result['job_id']}.out").read_text()
    assert [p[:4] for p in probes(log)] == RANKS


def test_on_this_machine_from_worker_threads(cluster: Cluster, workdir: Path) -> None:
    program = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "provider = SLURMProvider('local', extra_config={'user_sbatch_flags': '--output=%x'})\n"
        f"config = ClusterConfig(run={f'srun sh -c {quote(PROBE)}'!r}, num_nodes=2)\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    out(list(pool.map(lambda i: provider.launch_cluster(f'job{i}', config), range(4))))\n"
    )
    results = on_login_host(cluster, program, workdir)
    assert len({result["job_id"] for result in results}) == 4
    for result in results:
        assert cluster.wait(result["job_id"]) == "COMPLETED"
        assert [p[:4] for p in probes((workdir / result["cluster_name"]).read_text())] == RANKS


# --- tfl-remote-trap ------------------------------------------------------------------------------------------------


@pytest.fixture
def trapped(cluster: Cluster, workdir: Path) -> Callable[..., tuple[str, str]]:
    """Run a script as Transformer Lab does; the state of the job and its log come back."""
    trap = workdir / "bin" / "tfl-remote-trap"
    trap.parent.mkdir()
    trap.write_text(
        '#!/bin/sh\necho "trap started"\n[ "$1" != -- ] || shift\n/bin/sh -c "$*"\ns=$?\necho "trap saw $s"\nexit $s\n'
    )
    trap.chmod(0o755)
    path = f"{trap.parent}:{Path(PYTHON).parent}:/usr/local/bin:/usr/bin:/bin"

    def run(script: str, **config: Any) -> tuple[str, str]:
        wrapped = f"tfl-remote-trap -- {quote(script)}"
        fields = {"run": wrapped, "num_nodes": 2, **config}
        result = on_login_host(
            cluster,
            "provider = SLURMProvider('local', extra_config={'user_sbatch_flags': '--output=log'})\n"
            "out(provider.launch_cluster('trapped', ClusterConfig(**json.load(sys.stdin))))\n",
            workdir, input=json.dumps(fields), env={"PATH": path},
        )  # fmt: skip
        state = cluster.wait(result["job_id"])
        assert files_left(cluster, workdir) == []
        return state, (workdir / "log").read_text()

    return run


def test_the_specifications_example_in_the_trap(
    cluster: Cluster,
    trapped: Callable[..., tuple[str, str]],
    code: None,  # noqa: F811
) -> None:
    task = yaml.safe_load(SEED.read_text())
    state, log = trapped(task["script"], env_vars=task["env"])
    assert (state, log.count("trap started"), log.count("trap saw 0")) == ("COMPLETED", 1, 1), log
    assert [(rank, size, total) for rank, size, _, total in sums(log)] == [(0, 2, "3"), (1, 2, "3")]


def test_values_in_the_trap_and_in_its_tasks(cluster: Cluster, trapped: Callable[..., tuple[str, str]]) -> None:
    script = (
        "set -euo pipefail\n"
        'echo "it\'s {$RANK} {$NODE_RANK} {$LOCAL_RANK} {$MASTER_ADDR} ${_TLMN_TEXT-gone}"\n'
        f"srun sh -c '{PROBE}'\n"
    )
    state, log = trapped(script)
    assert state == "COMPLETED", log
    assert f"it's {{0}} {{0}} {{0}} {{{cluster.nodes[0]}}} gone" in log
    assert [p[:4] for p in probes(log)] == RANKS
    given = trapped(script, env_vars={"RANK": "7"})[1]
    assert "it's {7} {0}" in given
    assert [p.rank for p in probes(given)] == [7, 7]


def test_exit_status_of_the_trap(cluster: Cluster, trapped: Callable[..., tuple[str, str]]) -> None:
    state, log = trapped("exit 7\n")
    assert (state, "trap saw 7" in log) == ("FAILED", True)


def test_without_a_task_prolog_the_trap_freezes_no_rank(
    cluster: Cluster, trapped: Callable[..., tuple[str, str]], workdir: Path
) -> None:
    # No sbcast, and no directory that the other node has too.
    refuses = workdir / "bin" / "sbcast"
    refuses.write_text("#!/bin/sh\nexit 1\n")
    refuses.chmod(0o755)
    setup = "SLURM_SUBMIT_DIR=/dev/null HOME=/dev/null\ncd /tmp\n"
    state, log = trapped("srun sh -c 'echo rank=${RANK-unset}'\n", setup=setup)
    assert (state, log.count("rank=unset")) == ("COMPLETED", 2), log


# --- SkyPilot -------------------------------------------------------------------------------------------------------


def test_sky_task() -> None:
    config = ClusterConfig(
        run="python train.py", setup="pip install x", num_nodes=2, accelerators="L4:2", cpus=8, cloud="aws",
        use_spot=True, env_vars={"A": "b"}, file_mounts={"/data": "~/data"}, disk_size=100, region="r",
    )  # fmt: skip
    task = task_config("train", config)
    run = task.pop("run")
    assert run.endswith("\npython train.py")
    assert task == {
        "name": "train",
        "num_nodes": 2,
        "setup": "pip install x",
        "envs": {"A": "b"},
        "file_mounts": {"/data": "~/data"},
        "resources": {
            "accelerators": "L4:2", "cpus": 8, "infra": "aws", "use_spot": True, "disk_size": 100, "region": "r",
        },
    }  # fmt: skip
    native = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "0"}
    for rank in ("0", "1"):
        script = run.removesuffix("python train.py") + PROBE
        done = subprocess.run(
            ["bash", "-c", script], env={"PATH": os.environ["PATH"], **native, "SKYPILOT_NODE_RANK": rank},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        ((*ranks, address, port, _, _),) = probes(done.stdout)
        assert (*ranks, address, port) == (int(rank), 0, int(rank), 2, "10.0.0.1", 29500)


@pytest.mark.parametrize("nodes", [None, 1])
@pytest.mark.parametrize("run", [None, "python train.py"])
def test_sky_task_of_one_node_is_left_alone(nodes: int | None, run: str | None) -> None:
    task = task_config("train", ClusterConfig(run=run, num_nodes=nodes))
    assert task == {"name": "train", "num_nodes": 1, **({"run": run} if run else {})}


def test_sky_provider_calls_skypilot(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    sky = types.ModuleType("sky")
    sky.Task = types.SimpleNamespace(from_yaml_config=lambda config: config)
    sky.launch = lambda task, **kwargs: calls.append(("launch", task["num_nodes"], kwargs)) or "request-1"
    sky.exec = lambda task, **kwargs: calls.append(("exec", task["run"], kwargs)) or "request-2"
    monkeypatch.setitem(sys.modules, "sky", sky)
    provider = SkyPilotProvider()
    result = provider.launch_cluster("c", ClusterConfig(run="true", num_nodes=2, idle_minutes_to_autostop=5))
    assert result["job_id"] == "request-1"
    assert provider.submit_job("c", JobConfig(run="true"))["job_id"] == "request-2"
    assert calls == [
        ("launch", 2, {"cluster_name": "c", "idle_minutes_to_autostop": 5}),
        ("exec", "true", {"cluster_name": "c"}),
    ]


# --- the document ---------------------------------------------------------------------------------------------------


def test_every_block_of_the_document(cluster: Cluster, rest: Rest, workdir: Path) -> None:  # noqa: F811
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT.read_text(), re.S | re.M)
    assert {language for language, _ in blocks} == {"python"}
    source = workdir / "document.py"
    source.write_text("\n".join(text for _, text in blocks))
    program = workdir / "program.py"
    program.write_text(
        "import json, subprocess, sys\nfrom types import SimpleNamespace\n"
        "from document import *\nfrom transformerlab.models import ClusterConfig\n"
        "from transformerlab.slurm_provider import SLURMProvider\n"
        "provider = SLURMProvider(**json.loads(sys.argv[2]))\n"
        "provider._ssh_execute = lambda command: subprocess.run(['sh', '-c', command], stdout=-1, text=True).stdout\n"
        f"config = ClusterConfig(run={f'srun sh -c {quote(PROBE)}'!r}, num_nodes=2)\n"
        "assert run_command(config).endswith(config.run) and run_command(config) != config.run\n"
        "print(globals()[sys.argv[1]](provider, 'documented', config))\n"
    )
    path = {"PYTHONPATH": f"{workdir}:{EXAMPLES}"}
    for function in ("launch_by_ssh", "launch_here"):
        settings = json.dumps({"extra_config": {"user_sbatch_flags": "--output=log"}})
        done = cluster.run(PYTHON, program, function, settings, cwd=workdir, env=path, check=True)
        assert cluster.wait(done.stdout.strip()) == "COMPLETED"
        assert [p[:4] for p in probes((workdir / "log").read_text())] == RANKS
    for name in (source, program):
        (rest.cluster.scratch / name.name).write_text(name.read_text())
    settings = json.dumps({
        "mode": "rest", "rest_url": f"http://{rest.cluster.login}:6820", "api_token": rest._token,
        "extra_config": {"user_sbatch_flags": f"--output={rest.cluster.scratch}/log"},
    })  # fmt: skip
    path = {"PYTHONPATH": f"{rest.cluster.scratch}:{EXAMPLES}"}
    done = rest.cluster.run(PYTHON, "program.py", "launch_by_rest", settings, env=path, check=True)
    assert rest.cluster.wait(done.stdout.strip()) == "COMPLETED"
    assert [p[:4] for p in probes((rest.cluster.scratch / "log").read_text())] == RANKS
    for link in re.findall(r"\]\(([^)#:]+)\)", DOCUMENT.read_text()):
        assert (DOCUMENT.parent / link).exists(), link
