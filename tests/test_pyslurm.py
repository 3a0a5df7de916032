"""The pyslurm way without a pyslurm: what options become, and that a broken pyslurm harms nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import PYTHON, tl_slurm, write_task

from tl_slurm_adapter.option_table import TABLE
from tl_slurm_adapter.options import Option, OptionError, effective, parse_flags
from tl_slurm_adapter.pyslurm_values import NOT_GIVEN, NOT_GIVEN_16, attributes, environment, task_count

SIGNAL = ("signal", "time", "batch_only", "allow_reservation_overlap")


def values(flags: str, nodes: int = 1) -> dict[str, object]:
    return attributes(effective(parse_flags(flags)), nodes, lambda name: True)


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("-t 30", "time_limit", 30),
        ("-t 1-2:30", "time_limit", "1-2:30"),
        ("-t 0", "time_limit", "UNLIMITED"),
        ("-t 00:00:00", "time_limit", "UNLIMITED"),
        ("--time-min=5", "time_limit_min", 5),
        ("--mem=4G", "memory_per_node", 4096),
        ("--mem=4GB", "memory_per_node", 4096),
        ("--mem=1T", "memory_per_node", 1048576),
        ("--mem=100", "memory_per_node", 100),
        ("--mem-per-cpu=1k", "memory_per_cpu", 1),
        ("--mem-per-cpu=1025K", "memory_per_cpu", 2),
        ("--tmp=0", "temporary_disk_per_node", 0),
        ("--gres=gpu:l4:2,nic", "gres_per_node", {"gpu:l4": 2, "nic": 1}),
        ("--gres=nic:1 --gpus-per-node=l4:2", "gres_per_node", {"nic": 1, "gpu:l4": 2}),
        ("--gpus=4", "gpus", {"gpu": 4}),
        ("--gpus=l4", "gpus", {"gpu:l4": 1}),
        ("--signal=B:USR1@90", "signal", dict(zip(SIGNAL, (10, 90, True, False), strict=True))),
        ("--signal=SIGTERM", "signal", dict(zip(SIGNAL, (15, 60, False, False), strict=True))),
        ("--signal=rb:12@5", "signal", dict(zip(SIGNAL, (12, 5, True, True), strict=True))),
        ("-m plane=4", "distribution", 4),
        ("-m block:Cyclic:fcyclic", "distribution", "block:cyclic:fcyclic"),
        ("--exclusive", "resource_sharing", "exclusive"),
        ("--exclusive=user", "resource_sharing", "user"),
        ("-s", "resource_sharing", "oversubscribe"),
        ("--hold", "priority", 0),
        ("--priority=5 --hold", "priority", 0),
        ("--hold --priority=5", "priority", 0),
        ("--priority=5", "priority", 5),
        ("--nice", "nice", 100),
        ("--nice=+5", "nice", 5),
        ("--requeue", "is_requeueable", True),
        ("--requeue --no-requeue", "is_requeueable", False),
        ("--no-kill", "kill_on_node_fail", False),
        ("--no-kill=off", "kill_on_node_fail", True),
        ("--delay-boot=5", "delay_boot_time", "5:00"),
        ("--acctg-freq=30", "accounting_gather_frequency", "task=30"),
        ("--wait-all-nodes=0", "wait_all_nodes", False),
        ("-p a,b", "partitions", "a,b"),
        ("-J x -J y", "name", "y"),
        ("", "name", "sbatch"),
        ("", "standard_output", "slurm-%j.out"),
        ("--array=0-1", "standard_output", "slurm-%A_%a.out"),
        ("--array=0-1 -o x", "standard_output", "x"),
        ("", "standard_in", "/dev/null"),
        ("", "working_directory", os.getcwd()),
        ("--chdir=sub", "working_directory", os.path.join(os.getcwd(), "sub")),
        ("--chdir=/var", "working_directory", "/var"),
    ],
)  # fmt: skip
def test_an_option_becomes_a_value(flags: str, name: str, value: object) -> None:
    assert values(flags)[name] == value


# nodes, ntasks, cpus_per_task, min_cpus_per_node: what the sbatch command counts.
@pytest.mark.parametrize(
    ("flags", "nodes", "counts"),
    [
        ("", 1, (1, NOT_GIVEN, NOT_GIVEN_16, 1)),
        ("", 3, (3, NOT_GIVEN, NOT_GIVEN_16, 3)),
        ("-n4", 2, (2, 4, NOT_GIVEN_16, 4)),
        ("--ntasks-per-node=4", 2, (2, 8, NOT_GIVEN_16, 8)),
        ("-n4 --ntasks-per-node=4", 2, (2, 4, NOT_GIVEN_16, 4)),
        ("-c3", 2, (2, NOT_GIVEN, 3, 6)),
        ("-n4 -c3", 2, (2, 4, 3, 12)),
        ("-n4 -c3 -O", 2, (2, 4, 3, 2)),
        ("--sockets-per-node=2 --cores-per-socket=3", 2, (2, 12, NOT_GIVEN_16, 12)),
        ("--threads-per-core=1", 2, (2, 2, NOT_GIVEN_16, 2)),
    ],
)
def test_counts_are_always_sent(flags: str, nodes: int, counts: tuple[int, ...]) -> None:
    found = values(flags, nodes)
    assert tuple(found[name] for name in ("nodes", "ntasks", "cpus_per_task", "min_cpus_per_node")) == counts
    tasks = task_count({option.name: option for option in effective(parse_flags(flags))}, nodes)
    assert (NOT_GIVEN if tasks is None else tasks) == counts[1]


CANNOT = """
--time=forever|--mem=0|--mem-per-cpu=0|--mem=lots|--bb=x|--bbf=x|--clusters=c|--container-type=x|--cpu-freq=high|--cpus-per-gpu=2
--distribution=block|--distribution=block:cyclic|--distribution=arbitrary|--exclusive=topo|--export='A="x,y"'|--export=A*
--export-file=x|-B 1|--get-user-env=10L|--gpu-bind=closest|--gpu-freq=high|--gres=none|--gres=gpu:l4:0|--gres=gpu(S:0)
--gres-flags=allow-task-sharing|--hint=nomultithread|--kill-on-invalid-dep=no|--mail-type=ALL|--mail-type=INVALID_DEPEND
--mem-bind=local|--mincpus=2|--nodefile=x|-w ./hosts|--ntasks-per-gpu=2|--oom-kill-step|--power=x|--prefer=x
--priority=TOP|--profile=most|--propagate|--propagate=NONE|--requeue=expedite|--resv-ports=2|--switches=1
--signal=NONSENSE|--signal=TERM@0|--begin=1200|--tres-bind=x|--tres-per-task=x|--ntasks-per-tres=2|--stepmgr|-c 0
--spread-segments|--consolidate-segments|--resources=x|--mem-update=x|--comment=|--wait-all-nodes=2
""".replace("\n", "|").strip("|").split("|")  # fmt: skip


@pytest.mark.parametrize("flags", CANNOT)
def test_what_pyslurm_cannot_say_is_an_error_that_names_it(flags: str) -> None:
    (option,) = parse_flags(flags)
    known = {name for spec in TABLE.values() for name in spec.pyslurm or ()} - {"container_type", "power_options"}
    with pytest.raises(OptionError) as error:
        attributes([option], 1, known.__contains__)
        environment([option], 1, {}, lambda name: True)
    assert f"--{option.name}" in str(error.value)
    assert "submit with backend sbatch" in str(error.value) or "write it as" in str(error.value)


def test_names_are_those_that_this_pyslurm_has() -> None:
    (option,) = parse_flags("-p debug")
    assert attributes([option], 1, lambda name: name != "partitions")["partition"] == "debug"
    with pytest.raises(OptionError, match="--partition=debug"):
        attributes([option], 1, lambda name: not name.startswith("partition"))


ENVIRON = {"PATH": "/bin", "A": "1", "B": "two words", "SLURM_CONF": "/conf"}


@pytest.mark.parametrize(
    ("export", "kept"),
    [
        (None, ENVIRON),
        ("ALL", ENVIRON),
        ("all", ENVIRON),
        ("NONE", {"SLURM_CONF": "/conf", "SLURM_EXPORT_ENV": "NONE", "SLURM_GET_USER_ENV": "1"}),
        ("NIL", {"SLURM_CONF": "/conf", "SLURM_EXPORT_ENV": "NIL"}),
        ("A,C,D=x=y", {"SLURM_CONF": "/conf", "SLURM_EXPORT_ENV": "A,C,D=x=y", "SLURM_GET_USER_ENV": "1", "A": "1", "D": "x=y"}),  # noqa: E501
        ("ALL,A=2", {**ENVIRON, "A": "2", "SLURM_EXPORT_ENV": "ALL,A=2", "SLURM_GET_USER_ENV": "1"}),
    ],
)  # fmt: skip
def test_export(export: str | None, kept: dict[str, str]) -> None:
    options = [] if export is None else [Option("export", export)]
    env = environment(options, 1, ENVIRON, lambda name: False)
    added = {"SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_PRIO_PROCESS", "SLURM_UMASK"}
    assert env["SLURM_SUBMIT_DIR"] == os.getcwd()
    ours = {name: value for name, value in env.items() if name not in added and "external-launcher" not in value}
    assert {name: value for name, value in ours.items() if "HYDRA" not in name} == kept


def test_limits_are_passed_on_as_slurm_is_configured() -> None:
    env = environment([], 1, {}, lambda name: name == "NOFILE")
    assert int(env["SLURM_RLIMIT_NOFILE"]) > 0
    assert [name for name in env if name.startswith("SLURM_RLIMIT_")] == ["SLURM_RLIMIT_NOFILE"]
    assert not [name for name in environment([Option("get-user-env")], 1, {}, lambda name: True) if "RLIMIT" in name]


# --- a pyslurm that is broken -------------------------------------------------------------------------------------

BROKEN = {
    "raises": ("raise ImportError('libslurm.so.43: cannot open shared object file')", "libslurm.so.43: cannot open"),
    "exits": ("import os; os.write(2, b'fatal: no slurm.conf\\n'); os._exit(1)", "no slurm.conf"),
    "crashes": ("import os; os.kill(os.getpid(), 11)", "the interpreter ended with signal 11"),
    "is another package": ("", "has no attribute 'JobSubmitDescription'"),
}


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest, workdir: Path) -> tuple[Path, str]:
    text, words = BROKEN[request.param]
    (workdir / "site" / "pyslurm").mkdir(parents=True)
    (workdir / "site" / "pyslurm" / "__init__.py").write_text(text)
    return workdir / "site", words


def test_a_broken_pyslurm_never_harms_the_caller(cluster: Cluster, workdir: Path, broken: tuple[Path, str]) -> None:
    path, words = broken
    task = write_task(workdir, "true\n")
    env = {"PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"}
    job = json.loads(
        tl_slurm(cluster, "submit", task, "--backend=auto", "--json", cwd=workdir, env=env, check=True).stdout
    )
    assert job["backend"] == "sbatch"
    assert job["note"].startswith("sbatch was used: pyslurm cannot be imported here: ")
    assert words in job["note"]
    assert cluster.wait(job["job_id"]) == "COMPLETED"
    done = tl_slurm(cluster, "submit", task, "--backend=pyslurm", cwd=workdir, env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr


def test_without_pyslurm_sbatch_is_used(cluster: Cluster, workdir: Path) -> None:
    task = write_task(workdir, "true\n")
    # an isolated interpreter of another prefix would not find our packages; this one finds no pyslurm
    hide = "import sys; sys.modules['pyslurm'] = None; sys.path.pop(0)"
    code = f"{hide}; from tl_slurm_adapter.cli import main; raise SystemExit(main(sys.argv[1:]))"
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path and "pyslurm" not in path)}
    asked = [PYTHON, "-c", code, "submit", str(task)]
    done: subprocess.CompletedProcess[str] = cluster.run(*asked, "--json", cwd=workdir, env=paths, check=True)
    job = json.loads(done.stdout)
    assert (job["backend"], job["note"], done.stderr) == ("sbatch", "sbatch was used: pyslurm is not installed", "")
    done = cluster.run(*asked, "--backend=pyslurm", cwd=workdir, env=paths)
    assert done.stderr == "error: pyslurm is not installed\n"
