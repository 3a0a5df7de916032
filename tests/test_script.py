"""The batch script of a task: header, environment, block, run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sbatch_words import applies, header_options

from shared_env import load_task
from tl_slurm_adapter import BatchRequest, render_batch_script
from tl_slurm_adapter.resources import parse_accelerators

CASES = Path(__file__).parent / "cases"
FLAGS = yaml.safe_load((CASES / "flags.yaml").read_text())
QUOTING = yaml.safe_load((CASES / "quoting.yaml").read_text())


@pytest.mark.parametrize("case", FLAGS, ids=[case["id"] for case in FLAGS])
def test_recorded_flags(case: dict[str, Any]) -> None:
    arguments = {key: case[key] for key in ("num_nodes", "sbatch_flags", "job_name") if key in case}
    if case.get("error"):
        with pytest.raises(ValueError, match=r"(?i)" + re.escape(case["mentions"])):
            render_batch_script("true", **arguments)
        return
    assert applies(render_batch_script("true", **arguments), case)


def environment_of(script: str) -> dict[bytes, bytes]:
    """The environment that the run of a single-node script sees."""
    done = subprocess.run(["bash"], input=script.encode(), capture_output=True, env={"PATH": os.defpath}, check=True)
    return dict(item.split(b"=", 1) for item in done.stdout.split(b"\0") if item)


@pytest.mark.parametrize("case", QUOTING, ids=[case["id"] for case in QUOTING])
def test_recorded_values(case: dict[str, Any]) -> None:
    name = {"job_name": case["job_name"]} if "job_name" in case else {}
    if case.get("error"):
        with pytest.raises(ValueError, match=re.escape(case["mentions"]) if "mentions" in case else None):
            render_batch_script("env -0", env=case.get("env"), **name)
        return
    script = render_batch_script("env -0", env=case.get("env"), **name)
    assert "\r\n" not in script
    if name:
        assert f"#SBATCH --job-name={case['value']}" in header_options(script)
    else:
        found = environment_of(script)
        assert {key: found[key.encode()].decode() for key in case["value"]} == case["value"]
    assert not Path("/tmp/made_by_value").exists()
    assert not Path("/tmp/made_by_name").exists()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=20, max_size=20))
def test_any_value_arrives(values: list[str]) -> None:
    env = {f"V{number}": value for number, value in enumerate(values)}
    script = render_batch_script("env -0", env=env)
    assert "\r\n" not in script
    found = environment_of(script)
    assert {name: found[name.encode()].decode() for name in env} == env


def test_pinned_lines() -> None:
    """Text that other programs look for in a two-node script."""
    script = render_batch_script("python train.py", num_nodes=2)
    lines = script.splitlines()
    for line in (
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks=2",
        "#SBATCH --ntasks-per-node=1",
        'export MASTER_ADDR="${MASTER_ADDR:-$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)}"',
        'export WORLD_SIZE="${WORLD_SIZE:-${SLURM_NTASKS:-2}}"',
    ):
        assert line in lines
    assert script.endswith("# Main run command\npython train.py\n")
    assert 'export WORLD_SIZE="${WORLD_SIZE:-${SLURM_NTASKS:-12}}"' in render_batch_script(
        "x", num_nodes=3, sbatch_flags="--ntasks-per-node=4"
    )


def test_order_of_a_script() -> None:
    script = render_batch_script("RUN", num_nodes=2, env={"K": "V"}, setup="SETUP\n", sbatch_flags="-t 5")
    places = [
        script.index(text)
        for text in ("#!/bin/bash", "#SBATCH --time=5", "unset MASTER_ADDR", "export K=V", "SETUP",
                     "export MASTER_ADDR", "# Main run command\nRUN")
    ]  # fmt: skip
    assert places == sorted(places)


@pytest.mark.parametrize("num_nodes", [1, None])
def test_one_node_is_left_as_written(num_nodes: int | None) -> None:
    run = "set -e\n#SBATCH is a comment here\npython train.py --node_rank=$NODE_RANK\n\n"
    script = render_batch_script(run, num_nodes=num_nodes, env={"A": "b"}, setup="true")
    assert script == (
        "#!/bin/bash\n#SBATCH --nodes=1\n\nexport A=b\n# Setup\ntrue\n\n# Main run command\n" + run.rstrip("\n") + "\n"
    )


def test_pasted_script_gives_its_header_and_interpreter() -> None:
    pasted = "#!/bin/sh -e\r\n#SBATCH -N2 -n 8\r\n# a comment\r\n#SBATCH --time=10\r\n\r\nsrun x\r\n#SBATCH --late\r\n"
    script = render_batch_script(pasted, num_nodes=2, sbatch_flags="--time=20")
    assert script.startswith("#!/bin/sh -e\n")
    assert header_options(script) == ["#SBATCH --nodes=2", "#SBATCH --ntasks=8", "#SBATCH --time=20"]
    assert script.endswith("# Main run command\nsrun x\n#SBATCH --late\n")
    assert script.count("#SBATCH --time") == 1


@pytest.mark.parametrize("shebang", ["#!/bin/bash", "#! /usr/bin/env bash", "#!/bin/bash -l", "#!/usr/bin/sh -eu"])
def test_shells_are_kept(shebang: str) -> None:
    assert render_batch_script(f"{shebang}\ntrue\n").startswith(shebang + "\n#SBATCH")
    assert render_batch_script(shebang).endswith("# Main run command\n\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_nodes": 0}, "num_nodes must be an integer >= 1, not 0"),
        ({"num_nodes": True}, "num_nodes must be an integer >= 1, not True"),
        ({"num_nodes": "2"}, "num_nodes must be an integer >= 1, not '2'"),
        ({"num_nodes": 2, "sbatch_flags": "--nodes=4"}, "--nodes=4 contradicts num_nodes: 2"),
        ({"num_nodes": 2, "sbatch_flags": "-N 2-4"}, "--nodes=2-4 contradicts num_nodes: 2"),
        ({"num_nodes": 4, "sbatch_flags": "--ntasks=2"}, "--ntasks=2 contradicts num_nodes: 4"),
        ({"run": "#SBATCH -N3\ntrue", "num_nodes": 2}, "--nodes=3 contradicts num_nodes: 2"),
        ({"run": " \n"}, "the script is empty"),
        ({"run": "#!/usr/bin/env python3\nprint()"}, "'#!/usr/bin/env python3' is no shell"),
        ({"run": "a\0b"}, "NUL byte"),
        ({"setup": "a\0b"}, "NUL byte"),
        ({"job_name": "a\nb"}, "job-name holds a control character"),
        ({"partition": "a\nb"}, "partition holds a control character"),
        ({"env": {"A B": "1"}}, "'A B' is no variable name"),
        ({"env": {"A": 1}}, "A has the value 1, which is no text"),
        ({"master_addr": "dns"}, "master_addr must be 'hostname' or 'ip'"),
        ({"master_addr_suffix": "'; x"}, "cannot end a host name"),
        ({"launch": "everywhere"}, "launch must be"),
        ({"accelerators": ["L4:2", "A100:1"]}, "is a choice of several"),
        ({"accelerators": "L4:0"}, "is not TYPE:NUMBER"),
        ({"accelerators": "L4:0.5"}, "is not TYPE:NUMBER"),
        ({"cpus": "many"}, "cpus: 'many' is no number"),
        ({"memory": "-4"}, "memory: '-4' is no number"),
        ({"time_limit_seconds": 0}, "must be a number of seconds > 0"),
        ({"accelerators": "H100:1", "gpu_types": ("a100", "l4")}, "no GPU type 'H100'; it has a100, l4"),
        ({"accelerators": "H100:1", "gpu_types": ()}, "has no GPUs"),
    ],
)
def test_unusable_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        BatchRequest(**{"run": "true", **arguments})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"accelerators": "L4:2"}, ["--gpus-per-node=L4:2"]),
        ({"accelerators": {"L4": 2}}, ["--gpus-per-node=L4:2"]),
        ({"accelerators": "L4"}, ["--gpus-per-node=L4:1"]),
        ({"accelerators": "L4:2", "gpu_types": ("l4",)}, ["--gpus-per-node=l4:2"]),
        ({"accelerators": "L4:2", "gpu_types": ("",)}, ["--gpus-per-node=2"]),
        ({"accelerators": "gpu:2"}, ["--gpus-per-node=2"]),
        ({"accelerators": "L4:2", "sbatch_flags": "--gres=gpu:1"}, ["--gres=gpu:1"]),
        ({"accelerators": "L4:2", "sbatch_flags": "-G 3"}, ["--gpus=3"]),
        ({"accelerators": "L4:2", "sbatch_flags": "--gres=nic:1"}, ["--gpus-per-node=L4:2", "--gres=nic:1"]),
        ({"cpus": "8+"}, ["--cpus-per-task=8"]),
        ({"cpus": 0.5}, ["--cpus-per-task=1"]),
        ({"cpus": 8, "sbatch_flags": "--ntasks-per-node=4"}, ["--cpus-per-task=2", "--ntasks-per-node=4"]),
        ({"cpus": 8, "sbatch_flags": "-n 3", "num_nodes": 2}, ["--cpus-per-task=4", "--ntasks=3"]),
        ({"cpus": 8, "sbatch_flags": "-c 3"}, ["--cpus-per-task=3"]),
        ({"memory": "16"}, ["--mem=16G"]),
        ({"memory": "16GB"}, ["--mem=16G"]),
        ({"memory": "1.5+"}, ["--mem=1536M"]),
        ({"memory": 16, "sbatch_flags": "--mem-per-cpu=1G"}, ["--mem-per-cpu=1G"]),
        ({"time_limit_seconds": 3600}, ["--time=01:00:00"]),
        ({"time_limit_seconds": 3600, "sbatch_flags": "-t 5"}, ["--time=5"]),
        ({"requeue": True}, ["--requeue", "--open-mode=append"]),
        ({"requeue": True, "sbatch_flags": "--no-requeue"}, ["--no-requeue"]),
        ({"requeue": True, "sbatch_flags": "-o log"}, ["--requeue", "--output=log"]),
        ({"requeue": True, "sbatch_flags": "--open-mode=truncate"}, ["--requeue", "--open-mode=truncate"]),
        ({"partition": "gpu"}, ["--partition=gpu"]),
        ({"partition": "gpu", "sbatch_flags": "-p cpu"}, ["--partition=cpu"]),
        ({"job_name": "a", "sbatch_flags": "-J b"}, ["--job-name=b"]),
        ({"sbatch_flags": "--export=A=1\n--export=ALL,B=2"}, ["--export=ALL,A=1,B=2"]),
    ],
)
def test_what_is_asked_for_stands_in_the_header(arguments: dict[str, Any], expected: list[str]) -> None:
    header = header_options(str(BatchRequest("true", **arguments)))
    own = {"--nodes=1", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"}
    assert sorted(line.removeprefix("#SBATCH ") for line in header if line.split()[1] not in own) == sorted(expected)


def test_frozen_rank_is_found_only_where_it_is() -> None:
    trapped = 'srun torchrun --nnodes=2 --node_rank="$NODE_RANK" train.py'
    assert BatchRequest(trapped, num_nodes=2).frozen_rank is not None
    assert "PET_RDZV_BACKEND" in render_batch_script(trapped, num_nodes=2)
    c10d = trapped.replace("train.py", "--rdzv_backend=c10d train.py")
    for other in (f"srun bash -c '{trapped[5:]}'", c10d, f"# {trapped}\ntrue"):
        assert "PET_RDZV_BACKEND" not in render_batch_script(other, num_nodes=2)
    assert "PET_" not in render_batch_script(trapped, num_nodes=1)


def test_a_comment_of_the_trap_is_only_a_comment() -> None:
    run = 'srun torchrun --node_rank="$NODE_RANK`touch made`$(touch made)\n" x'
    script = render_batch_script(run, num_nodes=2)
    comment = [line for line in script.splitlines() if "in an srun command that starts torchrun" in line]
    assert comment
    assert all(line.startswith("#") for line in comment)


def test_per_node_on_one_node_is_a_plain_script() -> None:
    assert render_batch_script("torchrun train.py", launch="per-node").endswith(
        "# Main run command\ntorchrun train.py\n"
    )


def task(**changes: Any) -> dict[str, Any]:
    return {"name": "t", "resources": {"provider": "slurm", "num_nodes": 2}, "script": "srun x", **changes}


def test_request_of_a_task() -> None:
    loaded = load_task(
        task(
            resources={"provider": "SLURM", "num_nodes": 2, "accelerators": "L4:2", "cpus": "8+", "memory": 16},
            env={"A": 1, "TOKEN": "public"},
            secrets={"TOKEN": "hidden"},
            setup="pip install x",
        )
    )
    request = BatchRequest.from_task(loaded, partition="p", sbatch_flags=None)
    script = str(request)
    assert "#SBATCH --job-name=t" in script
    assert "export A=1\nexport TOKEN=hidden\n" in script
    assert "--gpus-per-node=L4:2" in script
    assert "#SBATCH --partition=p" in script
    assert "pip install x" in script


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resources": {"provider": "runpod", "num_nodes": 2}}, ("runpod", "num_nodes > 1", "slurm and skypilot")),
        ({"resources": {"provider": "skypilot", "num_nodes": 2}}, ("tl_sky_adapter",)),
        ({"script": None}, ("no script",)),
    ],
)
def test_tasks_that_are_not_for_slurm(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        BatchRequest.from_task(load_task(task(**changes)))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("text", ["L4:2", "l4 : 2", "NVIDIA-A100.80GB:8"])
def test_accelerator_names(text: str) -> None:
    assert parse_accelerators(text) is not None
