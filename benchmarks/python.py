"""What Python costs: imports, the start of each rank, host lists, scripts, checks."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .measure import Row, calls, interleaved, process, ratio

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TASK = {
    "SLURM_JOB_ID": "4242", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[0001-4096]", "SLURM_PROCID": "0",
    "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "32768",
}  # fmt: skip


def imports(sky_python: str) -> Iterator[Row]:
    """CPU of `import X` in a new interpreter, beside one that does nothing."""
    ours = {"shared_env": 2.0, "tl_slurm_adapter": 3.0, "tl_sky_adapter": 3.0}
    uses = {
        "rendering a script": "import tl_slurm_adapter as t; t.render_batch_script('true', num_nodes=2)",
        "the same with submitit's import": "import submitit",
        "the same with simple_slurm's import": "import simple_slurm",
    }
    codes = {"pass": "pass", **{name: f"import {name}" for name in ours}, **uses}
    took = interleaved(
        30, **{name: lambda code=code: process([sys.executable, "-c", code]) for name, code in codes.items()}
    )
    for name, goal in ours.items():
        yield Row(f"import {name}", "python -c pass", ratio(took[name], took["pass"]), goal=goal)
    for name in uses:
        yield Row(name, "python -c pass", ratio(took[name], took["pass"]))
    codes = {"pass": "pass", "sky": "import sky"}
    took = interleaved(3, **{name: lambda code=code: process([sky_python, "-c", code]) for name, code in codes.items()})
    yield Row("the same with the import of sky", "python -c pass", ratio(took["sky"], took["pass"]))


def start() -> Iterator[Row]:
    """`shared-env exec`, which every rank may begin with."""
    environ = {**os.environ, **TASK}
    command = str(Path(sys.executable).with_name("shared-env"))
    took = interleaved(
        40,
        exec=lambda: process([command, "exec", "--", "true"], environ),
        bare=lambda: process([sys.executable, "-c", "pass"], environ),
    )
    extra = 1000 * (statistics.median(took["exec"]) - statistics.median(took["bare"]))
    yield Row(
        "shared-env exec -- true",
        "python -c pass",
        ratio(took["exec"], took["bare"]),
        goal=2,
        note=f"{extra:.1f} ms more",
    )


def hostlists() -> Iterator[Row]:
    """Expansion, and the first host alone."""
    import hostlist
    from ClusterShell.NodeSet import NodeSet
    from submitit.slurm.slurm import _parse_node_list

    from shared_env import expand_nodelist, first_host

    starts = range(1, 10_001, 4)
    cases: dict[str, tuple[str, Callable[[], list[str]], float | None]] = {
        "node[00001-10000]": ("node[00001-10000]", lambda: [f"node{n:05}" for n in range(1, 10_001)], 1.5),
        "2,500 ranges in one bracket": (
            "node[" + ",".join(f"{n:05}-{n + 2:05}" for n in starts) + "]",
            lambda: [f"node{n + more:05}" for n in starts for more in (0, 1, 2)], 1.5,
        ),
        "2,500 ranges, no zeros": (
            "n[" + ",".join(f"{n}-{n + 2}" for n in starts) + "]",
            lambda: [f"n{n + more}" for n in starts for more in (0, 1, 2)], 1.5,
        ),
        "2,500 brackets": (
            ",".join(f"n[{n}-{n + 2}]" for n in starts),
            lambda: [f"n{n + more}" for n in starts for more in (0, 1, 2)], 1.5,
        ),
        "250 racks of 40": (
            ",".join(f"rack{rack}n[01-40]" for rack in range(250)),
            lambda: [f"rack{rack}n{n:02}" for rack in range(250) for n in range(1, 41)], 1.5,
        ),
        "10,000 plain names": (
            ",".join(f"node{n}" for n in range(10_000)), lambda: [f"node{n}" for n in range(10_000)], 1.5,
        ),
    }  # fmt: skip
    others: dict[str, Callable[[str], Any]] = {
        "python-hostlist": lambda text: hostlist.expand_hostlist(text, allow_duplicates=True),
        "ClusterShell": lambda text: list(NodeSet(text)),
        "submitit": _parse_node_list,
    }
    for title, (text, floor, goal) in cases.items():
        if expand_nodelist(text) != floor():
            raise AssertionError(title)
        took = interleaved(
            15,
            ours=lambda text=text: calls(lambda: expand_nodelist(text), 3),
            floor=lambda floor=floor: calls(floor, 3),
            **{name: lambda text=text, other=other: calls(lambda: other(text)) for name, other in others.items()},
        )
        yield Row(f"expand {title}", "a list of f-strings", ratio(took["ours"], took["floor"]), goal=goal)
        for name in others:
            yield Row(f"expand {title}", name, ratio(took["ours"], took[name]), goal=1)
    small, large = "node[00001-10000]", "node[00001-10000]" + ",other[00001-10000]" * 500
    took = interleaved(
        15,
        small=lambda: calls(lambda: first_host(small), 2000),
        large=lambda: calls(lambda: first_host(large), 2000),
        regex=lambda: calls(lambda: by_regex(small), 2000),
    )
    note = f"{1e6 * statistics.median(took['small']):.1f} us"
    yield Row(
        "first_host of 5,000,000 hosts", "of 10,000 hosts", ratio(took["large"], took["small"]), goal=1.5, note=note
    )
    yield Row(
        "first_host of 10,000 hosts",
        "two regular expressions",
        ratio(took["small"], took["regex"]),
        note="which know one bracket, and no error",
    )


def by_regex(text: str) -> str:
    """The usual short way: strip what is behind the first number of a bracket, then the bracket."""
    import re

    return re.sub(r"\[(.*?)[,-].*\]", r"\1", re.sub(r"\[(.*?)\].*", r"\1-", text)).split("-")[0]


def scripts() -> Iterator[Row]:
    """Rendering, checking, and the values of every rank."""
    import simple_slurm

    from shared_env import Rendezvous, check, load_task
    from tl_slurm_adapter import render_batch_script

    env = {"NCCL_DEBUG": "INFO", "HF_HOME": "/scratch/hf", "OMP_NUM_THREADS": "8", "LR": "0.1"}
    flags = "--ntasks-per-node=4 --gpus-per-node=4 -t 60"
    request: dict[str, Any] = {
        "num_nodes": 4, "job_name": "train", "partition": "gpu", "sbatch_flags": flags, "setup": "module load cuda",
        "env": env, "cpus": 8,
    }  # fmt: skip
    frozen = "srun torchrun --nnodes=4 --node_rank=$NODE_RANK train.py"

    def simple() -> str:
        job = simple_slurm.Slurm(
            nodes=4, job_name="train", partition="gpu", ntasks_per_node=4, gpus_per_node=4, time=60
        )
        return job.script() + "srun python train.py"

    took = interleaved(
        20,
        ours=lambda: calls(lambda: render_batch_script("srun python train.py", **request), 50),
        frozen=lambda: calls(lambda: render_batch_script(frozen, **request), 50),
        simple=lambda: calls(simple, 5),
    )
    microseconds = {name: 1e6 * statistics.median(values) for name, values in took.items()}
    yield Row("render a script, flags and env included", "", microseconds["ours"], "us", 100)
    yield Row("render a script whose torchrun needs mending", "", microseconds["frozen"], "us", note="it is parsed")
    yield Row(
        "render a script", "simple_slurm", ratio(took["ours"], took["simple"]), goal=1, note="headers alone there"
    )
    task = EXAMPLES / "train-slurm.yaml"
    took = interleaved(20, check=lambda: calls(lambda: check(load_task(task)), 10))
    yield Row("load and check one task.yaml", "", 1e3 * statistics.median(took["check"]), "ms", 20)
    ranks = [
        {**TASK, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // 8), "SLURM_LOCALID": str(rank % 8)}
        for rank in range(32_768)
    ]
    took = interleaved(3, ranks=lambda: calls(lambda: [Rendezvous.from_environ(rank) for rank in ranks]))
    yield Row("from_environ of 32,768 ranks", "", statistics.median(took["ranks"]), "s", 1)
