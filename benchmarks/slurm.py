"""Submissions and preflights on a real Slurm: the installed release, and 26.05 for pyslurm."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .measure import Row, interleaved, ratio, wall

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
PYSLURM = "/opt/pyslurm"  # where chroot.sh shows it
ROUNDS, BATCH = 10, 20  # 200 jobs a way
TASK = """\
name: bench
resources: {provider: slurm, num_nodes: 3}
env: {LR: "0.1"}
script: srun python train.py
"""


def submissions() -> Iterator[Row]:
    """200 held jobs each way, from the task.yaml to the job id."""
    environ = {**os.environ, "PYTHONPATH": f"{PYSLURM}:{TESTS}", "PYTHON": sys.executable}
    inside = [TESTS / "cluster" / "chroot.sh", "run", "26.05", sys.executable, "-m", "benchmarks.slurm", "cluster"]
    done = subprocess.run(inside, cwd=HERE.parent, env=environ, stdout=subprocess.PIPE, check=True)
    took: dict[str, list[float]] = json.loads(done.stdout.strip().splitlines()[-1])
    each = {way: f"{1000 * statistics.median(seconds) / BATCH:.1f} ms a job" for way, seconds in took.items()}
    yield Row(
        "submit 200 held jobs, pyslurm way",
        "bare sbatch",
        ratio(took["pyslurm"], took["bare"]),
        goal=0.25,
        note=f"{each['pyslurm']}; {each['bare']}",
    )
    yield Row(
        "submit 200 held jobs, sbatch way", "bare sbatch", ratio(took["sbatch"], took["bare"]), note=each["sbatch"]
    )
    yield Row(
        "submit 200 held jobs, pyslurm way", "submitit", ratio(took["pyslurm"], took["submitit"]), note=each["submitit"]
    )


def on_a_cluster() -> None:
    """In the root of 26.05: a cluster, and this module on its login host."""
    from cluster import Cluster

    with Cluster({"nodes": 3, "extra_conf": "MaxJobCount=5000"}) as cluster:
        path = f"{PYSLURM}:{HERE.parent}"
        done = cluster.run(sys.executable, "-m", "benchmarks.slurm", "submit", env={"PYTHONPATH": path}, timeout=900)
        sys.stderr.write(done.stderr)
        print(done.stdout)
        sys.exit(done.returncode)


def submit_each_way() -> None:
    """On the login host: print the seconds of each round of each way."""
    import submitit

    from shared_env import load_task
    from tl_slurm_adapter import BatchRequest
    from tl_slurm_adapter.submission import submit_request

    Path("task.yaml").write_text(TASK)
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=3\nsrun python train.py\n")
    executor = submitit.SlurmExecutor(folder="submitit")
    executor.update_parameters(nodes=3, time=60, additional_parameters={"hold": True})

    def ours(backend: str) -> None:
        request = BatchRequest.from_task(load_task("task.yaml"), sbatch_flags="--hold")
        if submit_request(request, backend=backend).backend != backend:
            raise AssertionError(backend)

    ways: dict[str, Callable[[], object]] = {
        "pyslurm": lambda: ours("pyslurm"),
        "sbatch": lambda: ours("sbatch"),
        "bare": lambda: subprocess.run(["sbatch", "--parsable", "--hold", "job.sh"], check=True, capture_output=True),
        "submitit": lambda: executor.submit(print, "hello"),
    }

    def batch(way: Callable[[], object]) -> float:
        return wall(lambda: [way() for _ in range(BATCH)])

    print(json.dumps(interleaved(ROUNDS, **{name: lambda way=way: batch(way) for name, way in ways.items()})))


def preflights() -> Iterator[Row]:
    """Three real nodes, and 512 ranks on one port of this machine."""
    sys.path.insert(0, str(TESTS))
    from cluster import Cluster

    with Cluster({"nodes": 3}) as cluster:

        def preflight() -> None:
            cluster.run(sys.executable, "-m", "tl_slurm_adapter.cli", "preflight", "--nodes", "3", check=True)

        took = interleaved(5, preflight=lambda: wall(preflight))
    yield Row(
        "tl-slurm preflight, 3 nodes",
        "",
        statistics.median(took["preflight"]),
        "s",
        2,
        "submission and end of the job included",
    )
    took = interleaved(3, ranks=lambda: wall(lambda: meet(512)))
    yield Row("preflight, 512 ranks on loopback", "", statistics.median(took["ranks"]), "s", 10)


def meet(world: int) -> None:
    """All the traffic of a preflight, from threads."""
    import socket

    from shared_env import preflight

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    deadline = time.monotonic() + 60
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "WORLD_SIZE": str(world)}
    records = [
        {**preflight.identity({**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}), "pid": rank}
        for rank in range(world)
    ]
    preflight.raise_file_limit()
    server = preflight.Server(records[0], deadline)
    server.start()
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda each=each: answers.append(preflight.meet(each, deadline))) for each in records
    ]
    for thread in threads:
        thread.start()
    for thread in (*threads, server):
        thread.join()
    if len(answers) != world or len(server.verdict["ranks"]) != world:
        raise AssertionError(f"{len(answers)} answers, {len(server.verdict['ranks'])} ranks")


if __name__ == "__main__":
    {"cluster": on_a_cluster, "submit": submit_each_way}[sys.argv[1]]()
