"""The contract in Python: recorded environments, ranges, and every rank of a large job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import shared_env
from shared_env import EnvError, Rendezvous, derive_port
from shared_env.contract import NAMES

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "rendezvous.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_recorded_environment(case: dict[str, Any]) -> None:
    environ = case["environ"]
    if case.get("error"):
        with pytest.raises((EnvError, ValueError)) as caught:
            Rendezvous.from_environ(environ)
        assert case.get("mentions", "").lower() in str(caught.value).lower()
        return
    found = Rendezvous.from_environ(environ)
    expected = dict(case["expect"])
    if "MASTER_PORT" not in expected:
        numbers = (environ["SLURM_JOB_ID"], environ.get("SLURM_RESTART_COUNT") or 0, environ["SLURM_STEP_ID"])
        expected["MASTER_PORT"] = derive_port(*map(int, numbers))
        assert 10000 <= expected["MASTER_PORT"] <= 32767
    assert found.as_env() == {name: str(expected[name]) for name in NAMES}
    assert set(found.sources) == set(NAMES)


def slurm_task(nodes: int, per_node: int, rank: int, **changes: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4242",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": f"node[0001-{nodes:04}]",
        "SLURM_STEP_NUM_TASKS": str(nodes * per_node),
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(rank // per_node),
        "SLURM_LOCALID": str(rank % per_node),
        **changes,
    }


def test_every_rank_of_32768() -> None:
    found = [Rendezvous.from_environ(slurm_task(4096, 8, rank)) for rank in range(32768)]
    assert [each.rank for each in found] == list(range(32768))
    assert {(each.master_addr, each.master_port, each.world_size) for each in found} == {
        ("node0001", derive_port(4242), 32768)
    }
    assert len({(each.node_rank, each.local_rank) for each in found}) == 32768
    assert max(each.node_rank for each in found) == 4095


@given(st.integers(0, 10**9), st.integers(0, 1000), st.integers(0, 10**6))
def test_ports_stay_in_their_window(job: int, restarts: int, step: int) -> None:
    assert 10000 <= derive_port(job, restarts, step) <= 32767


def test_ports_of_neighbours_differ() -> None:
    assert len({derive_port(job) for job in range(1, 20000)}) == 19999
    one_job = {derive_port(7, restarts, step) for restarts in range(20) for step in range(100)}
    assert len(one_job) == 2000


def test_special_steps_have_the_port_of_the_job() -> None:
    assert derive_port(7, step_id=0xFFFFFFFA) == derive_port(7)


@pytest.mark.parametrize("values", [(-1, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_negative_numbers_have_no_port(values: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="not negative"):
        derive_port(*values)


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "7", "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "GROUP_RANK": "1",
    "MASTER_ADDR": "n1", "MASTER_PORT": "29400",
}  # fmt: skip
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_PROCID": "0",
}  # fmt: skip
HYDRA = {
    "PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_PROCID": "0", "SLURM_NTASKS": "4",
}  # fmt: skip
SKY = {
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_GPUS_PER_NODE": "2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "system", "expected"),
    [
        (TORCHRUN, "torchrun", ("n1", 29400, 1, 5, 1, 8)),
        ({**slurm_task(2, 4, 0), **TORCHRUN}, "torchrun", ("n1", 29400, 1, 5, 1, 8)),
        ({**SKY, **TORCHRUN}, "torchrun", ("n1", 29400, 1, 5, 1, 8)),
        (OPENMPI, "openmpi", ("n1", 10012, 1, 3, 1, 4)),
        # mpirun's daemons are numbered without the first node, so SLURM_NODEID is not this node's number
        ({**OPENMPI, "SLURM_NODEID": "0", "SLURMD_NODENAME": "n2"}, "openmpi", ("n1", 10012, 1, 3, 1, 4)),
        ({**SKY, **OPENMPI}, "openmpi", ("10.0.0.1", 29500, 1, 3, 1, 4)),
        (HYDRA, "pmi", ("n1", 10012, 1, 3, 1, 4)),
        # srun --mpi=pmi2: the same rank twice
        ({**slurm_task(2, 2, 3), "PMI_RANK": "3", "PMI_SIZE": "4"}, "slurm", ("node0001", 14242, 1, 3, 1, 4)),
        ({**slurm_task(2, 1, 0), **SKY}, "skypilot", ("10.0.0.1", 29500, 1, 1, 0, 4)),
        (slurm_task(2, 1, 1, SLURM_STEP_ID="3"), "slurm", ("node0001", derive_port(4242, 0, 3), 1, 1, 0, 2)),
    ],
)
def test_who_started_the_process(environ: dict[str, str], system: str, expected: tuple[Any, ...]) -> None:
    found = Rendezvous.from_environ(environ)
    assert found.system == system
    assert found == Rendezvous(*expected)
    assert set(found.sources) == set(NAMES)


def test_a_batch_shell_of_one_task_is_a_world_of_one() -> None:
    environ = {
        "SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n7", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0",
    }  # fmt: skip
    assert Rendezvous.from_environ(environ) == Rendezvous("n7", 10005, 0, 0, 0, 1)


def test_without_a_total_the_counts_are_added() -> None:
    environ = slurm_task(2, 2, 3)
    del environ["SLURM_STEP_NUM_TASKS"]
    environ["SLURM_STEP_TASKS_PER_NODE"] = "2(x2)"
    assert Rendezvous.from_environ(environ).world_size == 4


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, ("not part of a multi-node task", "srun")),
        ({"SKYPILOT_SETUP_NODE_RANK": "0"}, ("setup", "run only")),
        ({"SLURM_JOB_ID": "7"}, ("attached to Slurm job 7", "SLURM_PROCID", "srun")),
        (slurm_task(2, 1, 1, SLURM_PROCID="one"), ("SLURM_PROCID='one'",)),
        (slurm_task(2, 1, 1, SLURM_PROCID="7"), ("RANK=7", "0..1")),
        (slurm_task(2, 1, 1, SLURM_STEP_NODELIST="n[2-1]"), ("SLURM_STEP_NODELIST", "n[2-1]")),
        (slurm_task(2, 1, 1, MASTER_PORT="²"), ("MASTER_PORT",)),
        (slurm_task(2, 1, 1, SLURM_DISTRIBUTION="arbitrary"), ("SLURM_HOSTFILE", "set MASTER_ADDR")),
        ({**SKY, "SKYPILOT_NUM_NODES": "many"}, ("SKYPILOT_NUM_NODES='many'",)),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_PORT"}, ("MASTER_PORT", "torchrun")),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, ("NODE_RANK",)),
    ],
)
def test_readable_errors(environ: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(EnvError) as caught:
        Rendezvous.from_environ(environ)
    for word in words:
        assert word in str(caught.value)


def test_host_file_of_an_arbitrary_distribution(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# task order\n\nn[3-4]*2\nn1\n")
    environ = slurm_task(2, 1, 1, SLURM_DISTRIBUTION="arbitrary", SLURM_HOSTFILE=str(hosts))
    assert Rendezvous.from_environ(environ).master_addr == "n3"


@given(st.dictionaries(
    st.sampled_from([*NAMES, *slurm_task(1, 1, 0), *SKY, *OPENMPI, *HYDRA, *TORCHRUN, "SLURM_RESTART_COUNT"]),
    st.one_of(st.sampled_from(["", "0", "1", "2", "n[1-3]", "2(x2)", "x", "-1", "99999999999", "10.1\n"]), st.text()),
))  # fmt: skip
def test_any_environment_gives_values_or_a_readable_error(environ: dict[str, str]) -> None:
    try:
        found = Rendezvous.from_environ(environ)
    except EnvError as error:
        assert "\n" not in str(error).rstrip() or any("\n" in value for value in environ.values())
    else:
        assert 0 <= found.rank < found.world_size
        assert 1 <= found.master_port <= 65535


def test_the_callers_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SKY.items():
        monkeypatch.setenv(name, value)
    assert Rendezvous.from_environ().rank == 1


def test_importing_is_cheap() -> None:
    """No third-party package, and none of the slow parts of the standard library, before they are used."""
    code = "import sys; import shared_env, tl_slurm_adapter, tl_sky_adapter; print('\\n'.join(sys.modules))"
    loaded = set(subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
                                cwd=Path(__file__).parents[1]).stdout.split())  # fmt: skip
    assert not loaded & {"sky", "pyslurm", "yaml", "pydantic", "click", "rich", "tree_sitter", "re", "typing", "json",
                         "dataclasses", "subprocess", "pathlib"}  # fmt: skip


def test_public_names() -> None:
    for name in shared_env.__all__:
        assert getattr(shared_env, name) is not None
    with pytest.raises(AttributeError):
        shared_env.nothing  # noqa: B018
