"""torchrun on the real cluster: the ways people start it, and the way that hangs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster import Cluster
from slurm_jobs import EXAMPLES, PYTHON, files_left, follow, job_id, sums, tl_slurm, write_task

SEED = Path(__file__).parent / "specification" / "train-multinode-slurm.yaml"
TRAIN = EXAMPLES / "train.py"
BIN = f"PATH={Path(PYTHON).parent}:$PATH"
# What the specification's table says, put down literally: exports in the batch shell.
LITERAL_PREAMBLE = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=literal.log
export MASTER_PORT=23456
export MASTER_ADDR="${MASTER_ADDR:-$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)}"
export NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"
export RANK="${RANK:-${SLURM_PROCID:-0}}"
export LOCAL_RANK="${LOCAL_RANK:-${SLURM_LOCALID:-0}}"
export WORLD_SIZE="${WORLD_SIZE:-${SLURM_NTASKS:-2}}"
"""


@pytest.fixture
def code() -> Iterator[None]:
    """The directory that the specification's example works in."""
    directory = Path("/workspace/my-train-code")
    existed = [path for path in (directory, directory.parent) if path.exists()]
    assert directory not in existed, f"{directory} is in the way"
    directory.mkdir(parents=True)
    try:
        shutil.copy(TRAIN, directory)
        yield
    finally:
        shutil.rmtree(directory if directory.parent in existed else directory.parent)


def path_env() -> dict[str, str | None]:
    """`python` and `torchrun` of this environment first."""
    return {"PATH": f"{Path(PYTHON).parent}:/usr/local/bin:/usr/bin:/bin"}


def test_the_specifications_example_unmodified(cluster: Cluster, workdir: Path, code: None) -> None:
    done = tl_slurm(cluster, "submit", SEED, "--follow", cwd=workdir, env=path_env())
    assert done.returncode == 0, done.stdout + done.stderr
    assert sums(done.stdout) == [(0, 2, cluster.nodes[0], "3"), (1, 2, cluster.nodes[1], "3")] or sums(done.stdout) == [
        (0, 2, cluster.nodes[1], "3"),
        (1, 2, cluster.nodes[0], "3"),
    ]
    assert "warning MN101" in done.stderr
    assert files_left(cluster, workdir) == []


def test_the_specifications_example_hangs_with_the_literal_preamble(
    cluster: Cluster, workdir: Path, code: None
) -> None:
    script = yaml.safe_load(SEED.read_text())["script"]
    job = cluster.sbatch(LITERAL_PREAMBLE + script, cwd=workdir, env=path_env())
    with pytest.raises(TimeoutError):
        cluster.wait(job, timeout=30)
    assert sums((workdir / "literal.log").read_text()) == []  # both nodes believe that they are node 0
    cluster.run("scancel", job, check=True)


def test_static_rendezvous_in_single_quotes_stays_static(cluster: Cluster, workdir: Path) -> None:
    script = (
        "srun bash -c 'env | grep ^PET_ ; torchrun --nnodes=2 --nproc_per_node=2 --node_rank=$SLURM_NODEID "
        f"--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT {TRAIN}'\n"
    )
    done = follow(cluster, workdir, script, env=path_env())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PET_" not in done.stdout
    assert "MN101" not in done.stderr
    # static: the ranks follow the node numbers
    assert sums(done.stdout) == [(rank, 4, cluster.nodes[rank // 2], "10") for rank in range(4)]


@pytest.mark.parametrize(
    ("accelerators", "env", "size"),
    [(None, {}, 2), ("L4:2", {}, 4), ("L4:2", {"PET_NPROC_PER_NODE": "1"}, 2)],
    ids=["no GPU", "2 GPUs", "env wins"],
)
def test_per_node_with_a_bare_torchrun(
    cluster: Cluster, workdir: Path, accelerators: str | None, env: dict[str, str], size: int
) -> None:
    shutil.copy(TRAIN, workdir)
    resources = {"provider": "slurm", "num_nodes": 2, **({"accelerators": accelerators} if accelerators else {})}
    done = follow(
        cluster, workdir, "torchrun train.py\n", resources=resources, launch="per-node", env=path_env(), env_=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    local = size // 2
    assert sums(done.stdout) == [
        (rank, size, cluster.nodes[rank // local], str(size * (size + 1) // 2)) for rank in range(size)
    ]
    assert files_left(cluster, workdir) == []


def test_two_trapped_steps_at_once_do_not_join_each_other(cluster: Cluster, workdir: Path) -> None:
    step = f"srun --overlap -N1 -n1 -w {{}} torchrun --nnodes=1 --nproc_per_node=2 --node_rank=$NODE_RANK {TRAIN} &\n"
    done = follow(
        cluster, workdir, step.format(cluster.nodes[0]) + step.format(cluster.nodes[1]) + "wait\n", env=path_env()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(sums(done.stdout)) == sorted((rank, 2, node, "3") for node in cluster.nodes[:2] for rank in range(2))


def test_a_pet_variable_in_env_wins(cluster: Cluster, workdir: Path) -> None:
    script = (
        "srun sh -c 'env | grep ^PET_' || :\ntrue srun torchrun\nsrun torchrun --node_rank=$NODE_RANK --version || :\n"
    )
    given = follow(cluster, workdir, script, env_={"PET_RDZV_BACKEND": "static"}, env=path_env())
    assert "PET_RDZV_BACKEND=static" in given.stdout
    assert "PET_RDZV_ENDPOINT" not in given.stdout
    plain = follow(cluster, workdir, script, env=path_env())
    assert f"PET_RDZV_ID={job_id(plain)}.0" in plain.stdout
    assert "PET_RDZV_BACKEND=c10d" in plain.stdout


def test_per_node_script_behaves_as_a_plain_script(cluster: Cluster, workdir: Path) -> None:
    script = """\
#!/bin/bash
set -euo pipefail
cat <<EOF
here-doc on $(hostname): $0 $# 'quotes' "double"
EOF
cat <<'EOF'
literal $HOME `date`
EOF
if read -r line; then echo "stdin: $line"; else echo "stdin is empty"; fi
false | true && echo unreached || echo "pipefail on"
[ "$SLURM_NODEID" = 0 ] || { sleep 1; exit 7; }
sleep 60
"""
    done = follow(cluster, workdir, script, launch="per-node")
    assert done.returncode == 7, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for node in cluster.nodes[:2]:
        assert any(
            line.startswith(f"here-doc on {node}: ") and line.endswith(" 0 'quotes' \"double\"") for line in lines
        )
    for line in ("literal $HOME `date`", "stdin is empty", "pipefail on"):
        assert lines.count(line) == 2
    assert files_left(cluster, workdir) == []


def test_per_node_script_is_not_touched(cluster: Cluster, workdir: Path) -> None:
    script = (
        "#!/bin/bash\n#SBATCH --comment='x'\ncat \"$0\" > $SLURM_NODEID.script\n: 'it''s' $'\\t' \\\n  é \"$(echo)\"\n"
    )
    write_task(workdir, script, launch="per-node")
    assert tl_slurm(cluster, "submit", "task.yaml", "--follow", cwd=workdir).returncode == 0
    first, second = ((workdir / f"{node}.script").read_text() for node in (0, 1))
    assert first == second
    assert first.endswith("cat \"$0\" > $SLURM_NODEID.script\n: 'it''s' $'\\t' \\\n  é \"$(echo)\"\n")
