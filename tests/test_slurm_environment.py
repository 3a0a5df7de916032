"""What reaches the processes of a real job: the task's own values, byte for byte, and nothing stale."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import PROBE, PYTHON, files_left, follow, job_id, probes, tl_slurm, write_task

from shared_env import derive_port
from shared_env.contract import NAMES

HOSTILE = {
    "SPACES": "  two  words ",
    "QUOTES": """it's "quoted" \\ '"'"'""",
    "COMMAND": "$(touch made_by_value) `touch made_by_value`",
    "EXPANSION": "$HOME ${PATH} $((1+1)) ~ * ? [a-z] {a,b}",
    "LINES": "one\ntwo\n\n#SBATCH --uid=0\nEOF\n",
    "RETURNS": "one\r\ntwo\r",
    "REPEAT": "64(x2)",
    "HASH": "# no comment",
    "OPTION": "-n 4; touch made_by_value & | > made_by_value",
    "UNICODE": "é 中文 🚀 \u2028",
    "EMPTY": "",
    "BIG": "x'y " * 25_000,
}


def dump_script(workdir: Path) -> str:
    program = workdir / "dump.py"
    program.write_text(
        "import base64, json, os, sys\n"
        "values = {n: base64.b64encode(os.environb[n.encode()]).decode() for n in sys.argv[1:]}\n"
        "open('dump.' + os.environ['RANK'], 'w').write(json.dumps(values))\n"
    )
    return f"srun {PYTHON} {program} {' '.join(HOSTILE)}\n"


def test_env_values_byte_for_byte(cluster: Cluster, workdir: Path) -> None:
    done = follow(cluster, workdir, dump_script(workdir), env_=HOSTILE)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        values = json.loads((workdir / f"dump.{rank}").read_text())
        assert {name: base64.b64decode(value).decode() for name, value in values.items()} == HOSTILE
    assert not list(workdir.glob("made_by_*"))


def test_names_and_header_values_byte_for_byte(cluster: Cluster, workdir: Path) -> None:
    name = '$(touch made_by_name) `touch made_by_name` "it\'s" (x2) # é \\ ; | &'
    comment = "say 'hi' \"there\" #1 $(touch made_by_name)"
    quoted = "--comment=\"say 'hi' \"'\"there\" #1 $(touch made_by_name)'"
    path = write_task(workdir, "true\n", name_=name)
    done = tl_slurm(cluster, "submit", path, "--sbatch-flags", f"{quoted} --hold", cwd=workdir, check=True)
    job = done.stdout.strip()
    shown = cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%j|%k", check=True).stdout
    cluster.run("scancel", job, check=True)
    assert shown.rstrip("\n") == f"{name}|{comment}"
    assert not list(workdir.glob("made_by_*"))


STALE = {
    **dict.fromkeys(NAMES, "99"),
    "MASTER_ADDR": "stale.example",
    "SLURM_JOB_ID": "1",
    "SLURM_NTASKS": "99",
    "SLURM_PROCID": "99",
    "SLURM_JOB_NODELIST": "stale[1-9]",
    "SLURM_HINT": "nomultithread",
    "SLURM_TASK_PROLOG": "/nonexistent",
    "SBATCH_PARTITION": "nonexistent",
    "SRUN_CPUS_PER_TASK": "99",
    "PMI_RANK": "99",
    "KEPT": "yes",
}


def test_the_submitting_shell_does_not_leak_into_the_job(cluster: Cluster, workdir: Path) -> None:
    script = f"env > batch.env\nsrun sh -c '{PROBE}; env > task.env'\n"
    done = follow(cluster, workdir, script, env=STALE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [p[:5] for p in probes(done.stdout)] == [
        (0, 0, 0, 2, cluster.nodes[0]),
        (1, 0, 1, 2, cluster.nodes[0]),
    ]
    for name in ("batch.env", "task.env"):
        text = (workdir / name).read_text()
        assert "KEPT=yes" in text
        assert "99" not in [line.partition("=")[2] for line in text.splitlines() if line.startswith(("SLURM", "PMI"))]
        assert "SLURM_HINT" not in text
    batch = dict(line.split("=", 1) for line in (workdir / "batch.env").read_text().splitlines() if "=" in line)
    # exported in the batch shell they would be frozen in every task
    assert not {"RANK", "LOCAL_RANK", "NODE_RANK"} & batch.keys()
    assert batch["WORLD_SIZE"] == "2"


def test_clean_env_passes_a_login_and_nothing_else(cluster: Cluster, workdir: Path) -> None:
    path = write_task(workdir, "env\n")
    done = tl_slurm(
        cluster, "submit", path, "--follow", "--clean-env", cwd=workdir, env={"SECRET": "x", "LC_TIME": "C"}
    )
    assert done.returncode == 0, done.stderr
    names = {line.split("=")[0] for line in done.stdout.splitlines()}
    assert {"PATH", "HOME", "LC_TIME", "SLURM_CONF", "MASTER_ADDR"} <= names
    assert "SECRET" not in names
    assert {n for n in names if not n.startswith(("SLURM", "SRUN", "SBATCH", "LC_", "MASTER_", "SBCAST"))} <= {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "WORLD_SIZE", "PWD", "SHLVL", "_"),
        *("ENVIRONMENT", "HOSTNAME", "TMPDIR", "OLDPWD"),
        # sbatch 24.11 and later, for the launchers of MPI libraries
        *("HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER_EXTRA_ARGS", "OMPI_MCA_plm_slurm_args", "PRTE_MCA_plm_slurm_args"),
        *("I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_env_overrides_each_variable_in_every_task(cluster: Cluster, workdir: Path, name: str) -> None:
    value = "10.1.2.3" if name == "MASTER_ADDR" else "4321"
    done = follow(cluster, workdir, f"srun sh -c '{PROBE}'\nsrun sh -c '{PROBE}'\n", env_={name: value})
    found = probes(done.stdout)
    assert len(found) == 4
    assert {str(getattr(probe, name.lower())) for probe in found} == {value}
    others = {"RANK": [0, 1, 0, 1], "LOCAL_RANK": [0] * 4, "NODE_RANK": [0, 1, 0, 1], "WORLD_SIZE": [2] * 4}
    for other, expected in others.items():
        if other != name:
            assert sorted(getattr(p, other.lower()) for p in found) == sorted(expected)


@pytest.mark.parametrize("where", ["setup", "script"])
@pytest.mark.parametrize("name", ["MASTER_PORT", "MASTER_ADDR", "RANK"])
def test_an_export_before_srun_reaches_every_task(cluster: Cluster, workdir: Path, where: str, name: str) -> None:
    export = f"export {name}=4567\n"
    srun = f"srun sh -c '{PROBE}'\n"
    keys = {"setup": export} if where == "setup" else {}
    done = follow(cluster, workdir, srun if keys else export + srun, **keys)
    assert [str(getattr(p, name.lower())) for p in probes(done.stdout)] == ["4567"] * 2


def test_exporting_the_batch_shells_own_rank_does_not_freeze_it(cluster: Cluster, workdir: Path) -> None:
    done = follow(
        cluster, workdir, f"set -a\nexport RANK NODE_RANK LOCAL_RANK\nsrun sh -c '{PROBE}'\n", setup="set -a\n"
    )
    assert [(p.rank, p.node_rank) for p in probes(done.stdout)] == [(0, 0), (1, 1)]


def test_export_none_still_reaches_the_tasks(cluster: Cluster, workdir: Path) -> None:
    script = f"srun sh -c '{PROBE}; echo from=$FROM_ENV'\n"
    done = follow(cluster, workdir, script, "--sbatch-flags", "--export=NONE", env_={"FROM_ENV": "env"})
    assert [(p.rank, p.world_size) for p in probes(done.stdout)] == [(0, 2), (1, 2)]
    assert done.stdout.count("from=env") == 2


def test_srun_export_none_gets_the_values_from_the_prolog(cluster: Cluster, workdir: Path) -> None:
    done = follow(cluster, workdir, f"srun --export=NONE /bin/sh -c 'PATH=/usr/bin:/bin; {PROBE}'\n")
    assert [(p.rank, p.world_size, p.master_addr, p.master_port) for p in probes(done.stdout)] == [
        (rank, 2, cluster.nodes[0], derive_port(int(job_id(done)))) for rank in (0, 1)
    ]


def test_cpus_per_task_reaches_the_steps(cluster: Cluster, workdir: Path) -> None:
    script = "srun sh -c 'echo cpus=$SLURM_CPUS_PER_TASK'\n"
    done = follow(cluster, workdir, script, resources={"provider": "slurm", "num_nodes": 2, "cpus": 4})
    assert done.stdout.count("cpus=4") == 2


def test_one_node_is_left_alone(cluster: Cluster, workdir: Path) -> None:
    for name, resources in (("one", {"provider": "slurm", "num_nodes": 1}), ("none", {"provider": "slurm"})):
        done = follow(cluster, workdir, "env\n", resources=resources, name_=name)
        assert done.returncode == 0, done.stderr
        assert not set(NAMES) & {line.split("=")[0] for line in done.stdout.splitlines()}
        assert "SLURM_TASK_PROLOG" not in done.stdout
    assert files_left(cluster, workdir) == []
