"""A real SkyPilot launches on a real Slurm cluster: two nodes, six variables, one sum."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from skypilot import SkyPilot
from slurm_jobs import EXAMPLES, PYTHON, sums, wait_for

from shared_env.skypilot import task_port

pytestmark = pytest.mark.timeout(900)  # the first test starts it all, and may have to make SkyPilot's environment
SEED = Path(__file__).parent / "specification" / "train-multinode-skypilot.yaml"
CPU, GPU = "cpu", "gpu"  # two SkyPilot clusters: the first two nodes of Slurm's, and the last two
SIX = 'echo "six $MASTER_ADDR $MASTER_PORT $NODE_RANK $RANK $LOCAL_RANK $WORLD_SIZE end"\n'
SMALL = {"cpus": 2}


def write(skypilot: SkyPilot, name: str, script: str, **keys: Any) -> Path:
    """A task.yaml for two nodes in the client's home; `env_` is its env."""
    keys = {key.rstrip("_"): value for key, value in keys.items()}
    task = {"name": name, "resources": {"provider": "skypilot", "num_nodes": 2, **SMALL}, **keys, "script": script}
    path = skypilot.client / f"{name}.yaml"
    path.write_text(yaml.safe_dump(task, sort_keys=False, allow_unicode=True))
    return path


def write_native(skypilot: SkyPilot) -> Path:
    """SkyPilot's own YAML for two nodes."""
    path = skypilot.client / "native.yaml"
    path.write_text(
        yaml.safe_dump({"num_nodes": 2, "resources": {"cpus": 1, "memory": 0.5}, "run": f"# native\n{SIX}"})
    )
    return path


def six(text: str) -> list[tuple[str, ...]]:
    """What SIX printed: address, port, node rank, rank, local rank, world size; by rank."""
    return sorted(re.findall(r"six (\S*) (\S*) (\S*) (\S*) (\S*) (\S*) end", text), key=lambda values: values[3])


def addresses(skypilot: SkyPilot) -> list[str]:
    """The addresses of the nodes."""
    hosts = dict(line.split()[::-1] for line in (skypilot.cluster.base / "hosts").read_text().splitlines())
    return [hosts[node] for node in skypilot.cluster.nodes]


def default_six(skypilot: SkyPilot, port: str = "29500") -> list[tuple[str, ...]]:
    """The values of a task on the two nodes without GPUs."""
    return [(addresses(skypilot)[0], port, str(rank), str(rank), "0", "2") for rank in (0, 1)]


EXEC = """
import json, os, sys, time, pathlib, sky, tl_sky_adapter as tl
from shared_env import load_task
cluster, *paths = sys.argv[1:]
def send(path):
    if pathlib.Path(path).name.startswith("native"):  # plain SkyPilot
        return sky.exec(sky.Task.from_yaml(path), cluster_name=cluster)
    return tl.exec(tl.to_sky_task(load_task(path)), cluster_name=cluster)
ids = {path: sky.get(send(path))[0] for path in paths}
end = time.monotonic() + 500
while True:
    states = sky.get(sky.job_status(cluster, list(ids.values())))
    if all(state.is_terminal() for state in states.values()) or time.monotonic() > end:
        break
    time.sleep(8)  # each question is a Python with SkyPilot on the head node
logs = sky.download_logs(cluster, [str(number) for number in ids.values()])
def texts(number):
    directory = pathlib.Path(os.path.expanduser(logs[str(number)])) / "tasks"
    return {path.name: path.read_text() for path in sorted(directory.glob("*.log"))}
print(json.dumps({pathlib.Path(path).stem: [states[number].value, texts(number)] for path, number in ids.items()}))
"""


def run_together(skypilot: SkyPilot, cluster: str, *paths: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """Run tasks on a cluster at the same time, with tl_sky_adapter.exec; state and log of each node, by file name."""
    done = skypilot.code(EXEC, cluster, *paths, cwd=EXAMPLES, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, tuple[str, dict[str, str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def gallery(skypilot: SkyPilot) -> Any:
    """The gallery's task, launched with tl-sky: it makes the cluster without GPUs that the other tests use."""
    path = write(skypilot, "gallery", SIX)
    return skypilot.tl_sky("launch", path, "--cluster", CPU, timeout=300)


@pytest.fixture(scope="module")
def seed(skypilot: SkyPilot, gallery: Any) -> Iterator[Any]:
    """The specification's example, unmodified, launched with tl-sky: it makes the cluster with GPUs, on other nodes."""
    directory = Path("/workspace/my-train-code")
    existed = directory.parent.exists()
    wait_for(lambda: not directory.exists(), 60)  # another test run has it
    directory.mkdir(parents=True)
    try:
        shutil.copy(EXAMPLES / "train.py", directory)
        yield skypilot.tl_sky("launch", SEED, "-c", GPU, timeout=300)
    finally:
        shutil.rmtree(directory if existed else directory.parent)


def test_gallery_task(skypilot: SkyPilot, gallery: Any) -> None:
    assert gallery.returncode == 0, gallery.stdout + gallery.stderr
    assert six(gallery.stdout) == default_six(skypilot)
    assert "Launching on Slurm" in gallery.stderr  # SkyPilot's words beside the log
    table = [line.split() for line in gallery.stderr.splitlines() if line.endswith("SUCCEEDED")]
    assert table[-2:] == [
        ["0", "head", addresses(skypilot)[0], "-", "SUCCEEDED"],
        ["1", "worker1", addresses(skypilot)[1], "-", "SUCCEEDED"],
    ]


def test_specifications_example_unmodified(skypilot: SkyPilot, seed: Any) -> None:
    """torchrun with 2 processes a node over gloo: 4 ranks, one sum, the port from env."""
    assert seed.returncode == 0, seed.stdout + seed.stderr
    found = sums(seed.stdout)
    assert [(rank, size, total) for rank, size, _, total in found] == [(rank, 4, "10") for rank in range(4)]
    assert [host for _, _, host, _ in found] == [node for node in skypilot.cluster.nodes[2:] for _ in range(2)]
    assert seed.stdout.count(f"master {addresses(skypilot)[2]}:8008") == 4


def test_portable_example_on_both_systems(skypilot: SkyPilot, gallery: Any) -> None:
    """The same file, trained by the same Slurm's batch job and by SkyPilot."""
    work = skypilot.cluster.scratch / "portable"
    shutil.copytree(EXAMPLES, work)
    path = f"{Path(PYTHON).parent}:/usr/local/bin:/usr/bin:/bin"
    slurm = skypilot.cluster.run(
        PYTHON, "-m", "tl_slurm_adapter.cli", "submit", "portable.yaml", "--follow", cwd=work, env={"PATH": path},
        timeout=200,
    )  # fmt: skip
    sky = skypilot.tl_sky("launch", "portable.yaml", "-c", CPU, cwd=work, timeout=300)
    assert (slurm.returncode, sky.returncode) == (0, 0), slurm.stdout + slurm.stderr + sky.stdout + sky.stderr
    expected = [(rank, 2, node, "3") for rank, node in enumerate(skypilot.cluster.nodes[:2])]
    assert sums(slurm.stdout) == expected
    assert sums(sky.stdout) == expected


MEET = r"""
python3 - <<'PY'
import os, pathlib, socket, time
rank, here = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
def until(condition):
    end = time.monotonic() + 150
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
def connect():
    try:
        socket.create_connection(here, 2).close()
        return True
    except OSError:
        return False
if rank == 0:
    server = socket.create_server(here)
    mine = pathlib.Path(os.environ["MEET"], os.environ["NAME"])
    mine.touch()
    until(lambda: len(list(mine.parent.iterdir())) == 2)  # both jobs hold their port now
    server.accept()
else:
    until(connect)
print("met", here[1])
PY
"""
SHAPES = """\
# a comment first

if [ "$RANK" = "$SKYPILOT_NODE_RANK" ]; then
  cat <<'EOF'
literal $RANK 'quotes' "double"
EOF
fi
set -euo pipefail
cat <<EOF
expanded $WORLD_SIZE $(printf '%s\\n' "$SKYPILOT_NODE_IPS" | wc -l) ${SKYPILOT_TASK_ID%%-*}
EOF
false | true
echo unreached
"""
Together = dict[str, tuple[str, dict[str, str]]]


@pytest.fixture(scope="module")
def together(skypilot: SkyPilot, gallery: Any) -> Together:
    """Several jobs at the same time on one cluster."""
    meet = skypilot.cluster.scratch / "meet"
    meet.mkdir()
    small = {"cpus": 1, "memory": 0.5}
    two = {"provider": "skypilot", "num_nodes": 2, **small}
    overrides = dict(zip(("MASTER_ADDR", "NODE_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE"), "mnrlw", strict=True))
    native = write_native(skypilot)
    rendered = skypilot.client / "native-rendered.yaml"
    rendered.write_text(skypilot.tl_sky("render", write(skypilot, "to-render", SIX, resources=two), check=True).stdout)
    in_env = {"MEET": str(meet), "NAME": "b", "MASTER_PORT": "auto"}
    return run_together(
        skypilot,
        CPU,
        write(skypilot, "auto-a", SIX + MEET, resources={**two, "port": "auto"}, env_={**in_env, "NAME": "a"}),
        write(skypilot, "auto-b", SIX + MEET, resources=two, env_=in_env),
        write(skypilot, "per-node", SIX + "env | grep ^PET_ | sort\n", launch="per-node", resources=two),
        write(skypilot, "override", SIX, env_={**overrides, "MASTER_PORT": "8008"}, resources=two),
        write(skypilot, "shapes", SHAPES, resources=two),
        write(skypilot, "failing", '[ "$RANK" = 0 ] || exit 3\nsleep 600\n', resources=two),
        native,
        rendered,
        EXAMPLES / "train-skypilot.yaml",
    )


def test_two_jobs_at_once_do_not_share_an_automatic_port(skypilot: SkyPilot, together: Together) -> None:
    ports = []
    for name in ("auto-a", "auto-b"):
        state, logs = together[name]
        assert state == "SUCCEEDED", logs
        found = six("".join(logs.values()))
        assert found == default_six(skypilot, found[0][1])
        assert all(f"met {found[0][1]}" in log for log in logs.values())
        ports.append(int(found[0][1]))
    assert ports[0] != ports[1]
    assert all(10000 <= port <= 32767 for port in ports)


def test_env_overrides_each_of_the_six(together: Together) -> None:
    state, logs = together["override"]
    assert state == "SUCCEEDED"
    assert six("".join(logs.values())) == [("m", "8008", "n", "r", "l", "w")] * 2


def test_a_run_of_any_shape_keeps_its_behaviour(together: Together) -> None:
    state, logs = together["shapes"]
    assert state == "FAILED"  # pipefail
    for log in logs.values():
        assert "literal $RANK 'quotes' \"double\"\n" in log
        assert "expanded 2 2 sky\n" in log
        assert "unreached" not in log


def test_a_failing_rank_fails_the_job(together: Together) -> None:
    assert together["failing"][0] == "FAILED"  # long before rank 0 would end


def test_per_node_defaults_of_torchrun(skypilot: SkyPilot, together: Together) -> None:
    """And the default port, beside jobs that have one of their own."""
    state, logs = together["per-node"]
    assert (state, six("".join(logs.values()))) == ("SUCCEEDED", default_six(skypilot))
    for rank, log in enumerate(logs.values()):
        found = dict(line.split("=", 1) for line in log.splitlines() if line.startswith("PET_"))
        task_id = found.pop("PET_RDZV_ID")
        assert task_id.startswith("sky-")  # what port: auto makes its number of
        assert 10000 <= task_port(task_id) <= 32767
        assert found == {
            "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(rank),
            "PET_MASTER_ADDR": addresses(skypilot)[0], "PET_MASTER_PORT": "29500",
        }  # fmt: skip


def test_rendered_yaml_with_plain_skypilot(skypilot: SkyPilot, together: Together) -> None:
    state, logs = together["native-rendered"]
    assert (state, six("".join(logs.values()))) == ("SUCCEEDED", default_six(skypilot))


def test_skypilot_example(skypilot: SkyPilot, together: Together) -> None:
    state, logs = together["train-skypilot"]
    assert state == "SUCCEEDED", logs
    assert sums("".join(logs.values())) == [
        (rank, 2, node, "3") for rank, node in enumerate(skypilot.cluster.nodes[:2])
    ]


def test_without_the_policy_plain_skypilot_sets_nothing(together: Together) -> None:
    state, logs = together["native"]
    assert (state, six("".join(logs.values()))) == ("SUCCEEDED", [("", "", "", "", "", "")] * 2)


def test_policy_gives_plain_skypilot_the_contract(skypilot: SkyPilot, gallery: Any) -> None:
    native = write_native(skypilot)

    def run(*command: Any) -> str:
        done = skypilot.sky(*command, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    skypilot.set_policy(True)
    try:
        launched = run("launch", "-y", "-c", CPU, native)
        with ThreadPoolExecutor() as pool:
            two = pool.submit(run, "exec", CPU, EXAMPLES / "native-skypilot.yaml")
            one = pool.submit(run, "exec", CPU, native, "--num-nodes", "1")
        executed, single = two.result(), one.result()
    finally:
        skypilot.set_policy(False)
    assert six(launched) == default_six(skypilot)
    assert "Applying client admin policy: MultiNodePolicy" in launched
    assert six(single) == [("", "", "", "", "", "")]
    found = re.findall(r"rank (\d) of (\d), master (\S+):(\d+)", executed)  # the example has port: auto
    port = found[0][3]
    assert sorted(found) == [(str(rank), "2", addresses(skypilot)[0], port) for rank in (0, 1)]
    assert 10000 <= int(port) <= 32767


def test_everything_of_a_task_reaches_the_nodes(skypilot: SkyPilot, gallery: Any) -> None:
    work = skypilot.cluster.scratch / "work"
    work.mkdir()
    (work / "here.txt").write_text("from workdir\n")
    (work / "mounted.txt").write_text("from file_mounts\n")
    script = 'cat here.txt ~/mounted.txt ~/setup.txt; echo "$TEXT|$TOKEN"\n' + SIX
    path = write(
        skypilot, "whole", script, setup='echo "from setup" > ~/setup.txt\n', workdir=str(work),
        file_mounts={"~/mounted.txt": str(work / "mounted.txt")},
        env_={"TEXT": "it's $HOME $(touch made)"}, secrets={"TOKEN": "s3cret"},
    )  # fmt: skip
    done = skypilot.tl_sky("launch", path, "-c", CPU, "--json", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout).items() >= {"cluster": CPU, "exit_status": 0}.items()  # and nothing else on stdout
    for line in ("from workdir", "from file_mounts", "from setup", "it's $HOME $(touch made)|s3cret"):
        assert done.stderr.count(line) == 2
    assert six(done.stderr) == default_six(skypilot)


def test_a_failing_setup_fails_the_launch(skypilot: SkyPilot, gallery: Any) -> None:
    done = skypilot.tl_sky("launch", write(skypilot, "bad-setup", "echo unreached\n", setup="exit 4\n"), "-c", CPU)
    assert done.returncode == 100, done.stdout + done.stderr  # SkyPilot's status of a failed job
    assert "unreached" not in done.stdout


def test_detach_status_logs_cancel(skypilot: SkyPilot, gallery: Any) -> None:
    sent = skypilot.tl_sky("exec", CPU, write(skypilot, "sleep", "echo asleep; sleep 600\n"), "--detach")
    assert sent.returncode == 0, sent.stderr
    cluster, job = sent.stdout.split()
    assert cluster == CPU
    status = json.loads(skypilot.tl_sky("status", CPU, "--json", check=True).stdout)
    assert [(each["cluster"], each["status"], each["nodes"]) for each in status] == [(CPU, "UP", 2)]
    states = {each["job_id"]: (each["name"], each["status"]) for each in status[0]["jobs"]}
    assert states[int(job)][0] == "sleep"
    assert states[int(job)][1] in ("PENDING", "SETTING_UP", "RUNNING")
    assert skypilot.tl_sky("cancel", CPU, job).returncode == 0
    assert skypilot.tl_sky("logs", CPU, job).returncode == 103
    table = skypilot.tl_sky("status", CPU, check=True).stdout
    assert re.search(rf"(?m)^{CPU} +UP +2 ", table)
    assert re.search(rf"(?m)^  job {job} +CANCELLED +sleep$", table)


def test_preflight(skypilot: SkyPilot, gallery: Any) -> None:
    done = skypilot.tl_sky("preflight", CPU, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["ok"] is True
    assert [(each["rank"], each["world_size"], each.get("state", "ok")) for each in verdict["ranks"]] == [
        (0, 2, "ok"),
        (1, 2, "ok"),
    ]
    assert not list(skypilot.client.glob("sky_logs/**/*preflight*"))
    missing = skypilot.tl_sky("preflight", "no-such-cluster")
    assert missing.returncode == 1
    assert "no cluster no-such-cluster" in missing.stderr


def test_launch_checks_first(skypilot: SkyPilot) -> None:
    done = skypilot.tl_sky("launch", write(skypilot, "trapped", "srun python train.py\n"), "--cluster", "never")
    assert done.returncode == 1
    assert "error MN109" in done.stderr
    assert "nothing was launched" in done.stderr


def test_check_says_where_and_what(skypilot: SkyPilot) -> None:
    script = "torchrun --nnodes=2 --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT x.py\n"
    good = skypilot.tl_sky("check", write(skypilot, "good", script))
    assert good.returncode == 0, good.stdout + good.stderr
    assert "can launch on: slurm" in good.stdout
    assert "policy: none" in good.stdout
    bad = skypilot.tl_sky("check", write(skypilot, "bad", "srun python train.py\n"), "--json")
    assert bad.returncode == 1
    found = json.loads(bad.stdout)
    assert found["infra"] == ["slurm"]
    assert "MN109" in [each["code"] for each in found["findings"]]


@pytest.mark.parametrize(("words", "message"), [
    (["launch", "good.yaml", "-c", "not a name!"], "not a name!"),
    (["launch", "good.yaml", "-c", "big", "--set", "resources.accelerators=L4:64"], "'L4': 64"),
    (["launch", "good.yaml", "-c", "big", "--set", "resources.infra=aws"], "aws"),
    (["exec", "nowhere", "good.yaml"], "nowhere"),
    (["logs", "nowhere"], "nowhere"),
    (["cancel", "nowhere", "1"], "nowhere"),
    (["down", "nowhere"], "nowhere"),
    (["status", "nowhere"], "nowhere"),
], ids=["name", "too many", "not enabled", "exec", "logs", "cancel", "down", "status"])  # fmt: skip
def test_errors_are_skypilots_own_words(skypilot: SkyPilot, words: list[str], message: str) -> None:
    write(skypilot, "good", "true\n")
    done = skypilot.tl_sky(*words, timeout=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stderr[done.stderr.rindex("error: ") :]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_any_cloud(skypilot: SkyPilot) -> None:
    """Another user, whose SkyPilot (with an API server of its own) has nowhere to go."""
    home = skypilot.cluster.scratch / "poor"
    shutil.copytree(skypilot.client / ".sky/catalogs", home / ".sky/catalogs")
    env = {"HOME": str(home), "SKYPILOT_API_SERVER_LOCAL_PORT": "46581", "SKYPILOT_USER_ID": "d2d2d2d2"}
    path = write(skypilot, "nowhere", "true\n")
    try:
        done = skypilot.tl_sky("launch", path, env=env, timeout=300)
        checked = skypilot.tl_sky("check", env=env)
    finally:
        skypilot.sky("api", "stop", env=env)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Cloud access is not set up" in done.stderr[done.stderr.rindex("error: ") :]
    assert "Traceback" not in done.stderr
    assert checked.returncode == 1
    assert "can launch on: nothing" in checked.stdout


def test_dryrun_and_down(skypilot: SkyPilot, gallery: Any, seed: Any) -> None:
    dry = skypilot.tl_sky("launch", write(skypilot, "dry", "true\n"), "-c", "dry", "--dryrun")
    assert dry.returncode == 0, dry.stderr
    assert "Slurm (ci)" in dry.stderr
    done = skypilot.tl_sky("down", CPU, GPU, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(skypilot.tl_sky("status", "--json", check=True).stdout) == []
    assert skypilot.cluster.run("squeue", "--noheader").stdout == ""
