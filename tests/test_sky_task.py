"""task.yaml -> sky.Task, the policy and the command line, with the real SkyPilot's objects and without a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from skypilot.environment import client, environment

from shared_env import load_task
from shared_env.contract import NAMES
from tl_sky_adapter import SkyTaskError, prefix_run, sky_config, to_sky_task

pytestmark = pytest.mark.timeout(900)  # the first test may have to make SkyPilot's environment
Python = Callable[..., Any]
NOWHERE = "http://127.0.0.1:1"
WHOLE = """
name: whole
description: every key
resources:
  provider: skypilot
  accelerators: 'L4:2'
  cpus: 8+
  memory: 16GB
  num_nodes: 3
  infra: aws
  disk_size: 100
  disk_tier: high
  use_spot: true
  image_id: docker:ubuntu:22.04
  autostop: 10m
  ports: ['8080']
  labels: {team: a}
env: {LR: 0.1, EMPTY: '', TEXT: "it's $HOME"}
secrets: {TOKEN: 's3cret'}
file_mounts: {/data/a: ./a.txt}
workdir: .
setup: |
  echo setup
script: |
  # train
  torchrun train.py
"""
NATIVE = {
    "name": "whole",
    "num_nodes": 3,
    "resources": {
        "accelerators": "L4:2", "cpus": "8+", "memory": "16GB", "infra": "aws", "disk_size": 100, "disk_tier": "high",
        "use_spot": True, "image_id": "docker:ubuntu:22.04", "autostop": "10m", "ports": ["8080"],
        "labels": {"team": "a"},
    },
    "envs": {"LR": "0.1", "EMPTY": "", "TEXT": "it's $HOME"},
    "secrets": {"TOKEN": "s3cret"},
    "file_mounts": {"/data/a": "./a.txt"},
    "workdir": ".",
    "setup": "echo setup\n",
    "run": prefix_run("# train\ntorchrun train.py\n", 3),
}  # fmt: skip
SERVICE = {
    "num_nodes": 2, "run": "a", "resources": {"ports": 8080}, "service": {"readiness_probe": "/", "replicas": 1},
}  # fmt: skip
# Prints a sky.Task as plain data; for the code of the tests.
PRELUDE = """
import json, sys, sky, tl_sky_adapter as tl
from shared_env import load_task
def data(task):
    config = task.to_yaml_config(); config.pop("_user_specified_yaml", None)
    config.get("resources", {}).get("any_of", []).sort(key=str)  # a set
    return {**config, "secrets": {k: v.get_secret_value() for k, v in task.secrets.items()}, "run": task.run}
def show(value):
    print(json.dumps(value, default=str))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Run Python code, or a module with arguments, in SkyPilot's environment; no network there, not even a loopback."""
    venv, home = environment(), tmp_path_factory.mktemp("sky-home")

    def run(
        code: str | None = None, *argv: str, cwd: Path | None = None, config: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        # An address where nobody listens: SkyPilot would start an API server of its own.
        environ = {**client(venv, home), "SKYPILOT_API_SERVER_ENDPOINT": NOWHERE}
        (home / ".sky/config.yaml").write_text(config)
        words = ["-c", PRELUDE + code] if code is not None else ["-m", "tl_sky_adapter.cli"]
        return subprocess.run(
            ["unshare", "--net", venv / "bin/python", *words, *argv], cwd=cwd or home, env={**environ, **env},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip

    return run


def result(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that the code printed last."""
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_whole_task_is_mapped(python: Python, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(WHOLE)
    (tmp_path / "a.txt").write_text("a")
    found = result(
        python(
            f"show([data(tl.to_sky_task(load_task('task.yaml'))), data(sky.Task.from_yaml_config({NATIVE!r}))])",
            cwd=tmp_path,
        )
    )
    assert found[0] == found[1]
    assert found[0]["secrets"] == {"TOKEN": "s3cret"}
    assert found[0]["resources"]["disk_size"] == 100
    assert found[0]["run"] == NATIVE["run"]


CHOICES = {
    "list": "{accelerators: ['L4:1', 'A100:2']}",
    "set": "{accelerators: {L4: 1, A100: 2}}",
    "any_of": "{any_of: [{infra: aws}, {infra: gcp}]}",
    "ordered": "{cpus: 4, ordered: [{infra: aws, use_spot: true}, {infra: gcp}]}",
    "region": "{cloud: aws, region: us-east-1}",
    "nothing": "{}",
}


def test_choices_of_resources_pass_through(python: Python) -> None:
    native = {
        name: {"num_nodes": 2, "resources": yaml.safe_load(text), "run": "true"} for name, text in CHOICES.items()
    }
    ours = {name: yaml.safe_load(text) for name, text in CHOICES.items()}
    found = result(
        python(
            f"""
def task(resources):
    return load_task({{"resources": {{**resources, "num_nodes": 2}}, "script": "true"}})
ours = {{k: data(tl.to_sky_task(task(v))) for k, v in {ours!r}.items()}}
theirs = {{k: data(tl.apply(sky.Task.from_yaml_config(v))) for k, v in {native!r}.items()}}
show([ours, theirs])
"""
        )
    )
    assert found[0] == found[1]
    assert set(found[0]) == set(CHOICES)


def test_rendered_yaml_is_the_same_task(python: Python, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text(WHOLE)
    (tmp_path / "a.txt").write_text("a")
    rendered = python(None, "render", "task.yaml", "--set", "LR=0.2", "--set", "HF_TOKEN=s3cret2", cwd=tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    assert "s3cret" not in rendered.stdout + rendered.stderr
    assert "--env HF_TOKEN --secret TOKEN" in rendered.stderr
    (tmp_path / "sky.yaml").write_text(rendered.stdout)
    code = """
from sky.utils import dag_utils
try:
    dag_utils.load_chain_dag_from_yaml("sky.yaml")
except ValueError as error:
    assert "HF_TOKEN" in str(error)
else:
    raise AssertionError("a value that was left out is not asked for")
from sky.client.cli import flags
given = [flags._parse_env_var("HF_TOKEN")], [flags._parse_secret_var("TOKEN")]
dag = dag_utils.load_chain_dag_from_yaml("sky.yaml", env_overrides=given[0], secret_overrides=given[1])
show([data(dag.tasks[0]), data(tl.to_sky_task(load_task("task.yaml", overrides=["LR=0.2", "HF_TOKEN=s3cret2"])))])
"""
    found = result(python(code, cwd=tmp_path, HF_TOKEN="s3cret2", TOKEN="s3cret"))
    assert found[0] == found[1]


TEXTS = [
    "plain", " leading", "trailing \n", "a\n\n\nb\n", "tab\there\n", "'\"$`\\", "é 漢\n", "# x", "- a", "no\nend",
    "\r\n",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_rendered_yaml_keeps_every_text(text: str, tmp_path: Path) -> None:
    """Without SkyPilot: rendering needs none."""
    task = {"resources": {"num_nodes": 2}, "env": {"X": text}, "setup": text, "script": text}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task, allow_unicode=True))
    done = subprocess.run(
        [sys.executable, "-m", "tl_sky_adapter.cli", "render", "task.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(done.stdout)
    assert (found["envs"]["X"], found["setup"]) == (text, text)
    assert found["run"] == prefix_run(text, 2)


def test_port_auto_is_an_environment_variable_of_skypilot() -> None:
    def envs(resources: dict[str, Any], **env: str) -> Any:
        return sky_config(load_task({"resources": {"num_nodes": 2, **resources}, "env": env, "script": "x"})).get(
            "envs"
        )

    assert envs({"port": "auto"}) == {"MASTER_PORT": "auto"}
    assert envs({"port": "auto"}, MASTER_PORT="8008") == {"MASTER_PORT": "8008"}
    assert envs({}) is None
    assert "resources" not in sky_config(load_task({"resources": {"num_nodes": 2, "port": "auto"}, "script": "x"}))


def test_launch_per_node_adds_torchruns_defaults() -> None:
    task = load_task({"resources": {"num_nodes": 2}, "launch": "per-node", "script": "torchrun train.py"})
    assert sky_config(task)["run"] == prefix_run("torchrun train.py", 2, launch="per-node")
    assert "PET_NNODES" in sky_config(task)["run"]


def test_single_node_and_no_script() -> None:
    assert sky_config(load_task({"script": "echo 1", "launch": "per-node"}))["run"] == "echo 1"
    assert "run" not in sky_config(load_task({"resources": {"num_nodes": 2}}))


@pytest.mark.parametrize(("task", "words"), [
    ({"resources": {"provider": "slurm", "num_nodes": 2}, "script": "x"}, "submit it with tl-slurm"),
    ({"resources": {"provider": "runpod", "num_nodes": 2}, "script": "x"}, "cannot run it with num_nodes: 2"),
    ({"file_mounts": True, "script": "x"}, "file_mounts: true"),
])  # fmt: skip
def test_what_skypilot_cannot_take_is_refused(task: dict[str, Any], words: str) -> None:
    with pytest.raises(SkyTaskError, match=words):
        sky_config(load_task(task))


def test_without_skypilot_the_message_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"pip install 'tl-multinode\[sky\]'"):
        to_sky_task(load_task({"script": "x"}))
    for words in (["status"], ["launch", "task.yaml"], ["check"], ["down", "c"], ["logs", "c"], ["cancel", "c", "1"]):
        (tmp_path / "task.yaml").write_text("script: x\n")
        done = subprocess.run(
            [sys.executable, "-m", "tl_sky_adapter.cli", *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: SkyPilot is not installed here")
        assert done.stderr.count("\n") == 1


def test_apply_to_every_kind_of_run(python: Python) -> None:
    code = """
out = {}
for name, run, nodes in [("text", "a", 2), ("list", ["a", "b"], 2), ("none", None, 2), ("one node", "a", 1)]:
    task = sky.Task(run=run, num_nodes=nodes)
    same = tl.apply(task) is task
    once = task.run
    out[name] = [same, once, tl.apply(task).run == once]
function = sky.Task(run="a", num_nodes=2); function.run = lambda rank, ips: "a"
for nodes in (1, 2):
    function.num_nodes = nodes
    try:
        out[f"function {nodes}"] = callable(tl.apply(function).run)
    except TypeError as error:
        out[f"function {nodes}"] = str(error)
with sky.Dag() as dag:
    first, second = sky.Task(run="a", num_nodes=2), sky.Task(run="b")
    first >> second
same = tl.apply(dag) is dag
out["dag"] = [same, [task.run for task in dag.tasks], len(dag.graph.edges)]
service = sky.Task.from_yaml_config(SERVICE)
out["service"] = tl.apply(service).run
show(out)
"""
    found = result(python(f"SERVICE = {SERVICE!r}\n{code}"))
    assert found["text"] == [True, prefix_run("a", 2), True]
    assert found["list"] == [True, prefix_run("a\nb", 2), True]
    assert found["none"] == [True, None, True]
    assert found["one node"] == [True, "a", True]
    assert found["function 1"] is True
    assert "not function" in found["function 2"]
    assert found["dag"] == [True, [prefix_run("a", 2), "b"], 1]
    assert found["service"] == "a"


POLICY = "admin_policy: tl_sky_adapter.MultiNodePolicy\n"


REQUESTS = ["CLUSTER_LAUNCH", "CLUSTER_EXEC", "JOBS_LAUNCH", "JOBS_LAUNCH_CLUSTER"]


def test_policy_on_skypilots_own_requests(python: Python) -> None:
    """SkyPilot applies the policy to its request object as client, sends the task as YAML, and applies it as server.

    So `sky jobs launch` is tested up to the controller, which needs a cloud.
    """
    code = f"""
from sky.utils import admin_policy_utils, dag_utils
from sky.server.requests.request_names import AdminPolicyRequestName as Name
def both(request, task):
    dag, _ = admin_policy_utils.apply(task, Name[request], at_client_side=True)
    client = dag.tasks[0].run
    dag = dag_utils.load_chain_dag_from_yaml_str(dag_utils.dump_chain_dag_to_yaml_str(dag))
    dag, _ = admin_policy_utils.apply(dag, Name[request])
    return [client, dag.tasks[0].run]
show({{request: {{
    "two": both(request, sky.Task(run="# a\\necho 1\\n", num_nodes=2)),
    "one": both(request, sky.Task(run="a")),
    "ready": both(request, sky.Task(run=tl.prefix_run("a", 2, launch="per-node"), num_nodes=2)),
    "none": both(request, sky.Task(num_nodes=2)),
    "service": both(request, sky.Task.from_yaml_config({SERVICE!r})),
}} for request in {REQUESTS!r}}})
"""
    found = result(python(code, config=POLICY))
    assert list(found) == REQUESTS
    for each in found.values():
        assert each["two"] == [prefix_run("# a\necho 1\n", 2)] * 2
        assert each["one"] == ["a", "a"]
        assert each["ready"] == [prefix_run("a", 2, launch="per-node")] * 2
        assert each["none"] == [None, None]
        assert each["service"] == ["a", "a"]


def test_policy_on_a_pipeline_keeps_its_order(python: Python) -> None:
    code = """
from sky.utils import admin_policy_utils
from sky.server.requests.request_names import AdminPolicyRequestName as Name
with sky.Dag() as dag:
    first, second = sky.Task(run="a", num_nodes=2), sky.Task(run="b", num_nodes=3)
    first >> second
dag, _ = admin_policy_utils.apply(dag, Name.JOBS_LAUNCH)
show([[task.run for task in dag.tasks], len(dag.graph.edges)])
"""
    assert result(python(code, config=POLICY)) == [[prefix_run("a", 2), prefix_run("b", 3)], 1]


SHAPES = {
    "status": "exit 7\n",
    "comment": "# c\nexit 3",
    "blank": "\n\nexit 4\n",
    "if": "if false; then :; else exit 6; fi\n",
    "here-doc": "cat <<'EOF'\n$A 'x\nEOF\nexit 8\n",
    "strict": "set -euo pipefail\nfalse | true\nexit 9\n",
    "strict ok": 'set -euo pipefail\n[ "$MASTER_ADDR" = 10.0.0.1 ]\n',
    "CRLF": "echo one\r\nexit 5\r\n",
    "CRLF if": "if true; then\r\n  :\r\nfi\r\n",
}


def test_status_through_skypilots_own_job_script(python: Python) -> None:
    """SkyPilot's own script (make_task_bash_script, `bash -i`) on this machine ends as without the prefix."""
    code = f"""
import os, tempfile
from sky.skylet.log_lib import run_bash_command_with_log
env = {{"SKYPILOT_NODE_IPS": "10.0.0.1\\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}}
os.makedirs(os.path.expanduser("~/sky_workdir"), exist_ok=True)
def status(run, **extra):
    with tempfile.TemporaryDirectory() as logs:
        code = run_bash_command_with_log(run, os.path.join(logs, "run.log"), env_vars={{**env, **extra}})
        with open(os.path.join(logs, "run.log")) as log:
            return [code, log.read()]
out = {{}}
for name, run in {SHAPES!r}.items():
    plain = "export MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 NODE_RANK=1 RANK=1 LOCAL_RANK=0 WORLD_SIZE=2\\n" + run
    out[name] = [status(plain)[0], status(tl.prefix_run(run, 2))[0]]
six = 'echo "$MASTER_ADDR $MASTER_PORT $NODE_RANK $RANK $LOCAL_RANK $WORLD_SIZE"'
out["values"] = status(tl.prefix_run(six, 2))
for name in {NAMES!r}:
    out[name] = status(tl.prefix_run(six, 2), **{{name: "mine"}})[1].splitlines()[-1].split().count("mine")
out["empty"] = status(tl.prefix_run("echo unreached", 2), SKYPILOT_NODE_IPS="")
show(out)
"""
    found = result(python(code))
    statuses = {name: found[name] for name in SHAPES}
    assert all(plain == prefixed for plain, prefixed in statuses.values()), statuses
    assert (statuses["status"][1], statuses["strict"][1], statuses["strict ok"][1]) == (7, 1, 0)
    assert found["values"][0] == 0
    assert found["values"][1].splitlines()[-1] == "10.0.0.1 29500 1 1 0 2"
    assert [
        found[name] for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    ] == [1] * 6
    assert found["empty"][0] == 1
    assert "SKYPILOT_NODE_IPS is empty" in found["empty"][1]
    assert "unreached" not in found["empty"][1]


@pytest.mark.parametrize(("task", "words"), [
    ("resources: {acelerator: L4}\nscript: x\n", "acelerator"),
    ("resources: {cpus: 4x}\nscript: x\n", "4x"),
    ("resources: {num_nodes: 0}\nscript: x\n", "num_nodes"),
    ("resources: {infra: nowhere}\nscript: x\n", "nowhere"),
])  # fmt: skip
def test_bad_resources_are_one_readable_message(python: Python, tmp_path: Path, task: str, words: str) -> None:
    (tmp_path / "task.yaml").write_text(task)
    done = python(None, "launch", "task.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert done.stderr.count("error:") == 1


COMMANDS = ["launch t.yaml", "exec c t.yaml", "status", "logs c", "cancel c 1", "down c", "check"]


def test_a_server_that_is_down_is_one_readable_message(python: Python, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("script: x\n")
    code = f"""
import contextlib, io
from tl_sky_adapter.cli import main
out = {{}}
for words in {COMMANDS!r}:
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(words.split())
    out[words] = [status, printed.getvalue(), err.getvalue()]
show(out)
"""
    for words, (status, out, err) in result(python(code, cwd=tmp_path)).items():
        assert (status, out) == (1, ""), words
        assert err.startswith(f"error: Could not connect to SkyPilot API server at {NOWHERE}"), words
