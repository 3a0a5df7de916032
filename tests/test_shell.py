"""The contract in shell states the same as the contract in Python, under bash and dash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shared_env
from shared_env import Rendezvous, derive_port, first_host, shell
from shared_env.contract import NAMES

SHELLS = ("bash", "dash")
SHELL_FILES = sorted((Path(shared_env.__file__).parent / "shell").glob("*.sh"))
SETTINGS = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MARK = "=== next ==="


def run_shell(name: str, text: str, environ: dict[str, str], check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [shutil.which(name) or name, "-s"], input=text.encode(), env=environ, capture_output=True, check=check
    )


@pytest.mark.parametrize("file", SHELL_FILES, ids=lambda file: file.name)
def test_shellcheck(file: Path) -> None:
    done = subprocess.run(["shellcheck", "--external-sources", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


BLOCKS = {
    "plain": {},
    "ip": {"master_addr": "ip"},
    "suffix": {"master_addr_suffix": "-ib"},
    "trap": {"frozen_rank": "srun torchrun --node_rank=$NODE_RANK"},
    "per-node": {"per_node_script": "echo 'it''s' $HOME\n"},
    "old trap": {"keep_exit_trap": True},
}


@pytest.mark.parametrize("arguments", BLOCKS.values(), ids=BLOCKS)
def test_filled_in_texts_are_shellcheck_clean(arguments: dict[str, object]) -> None:
    block = shell.slurm_block(2, 4, **arguments)  # type: ignore[arg-type]
    assert not [line for line in block.splitlines() if line.lstrip().startswith("#@") or "@WORLD" in line]
    # what the source files switch off: words split on purpose, text expanded later, trap -p (tried first)
    done = subprocess.run(
        ["shellcheck", "--shell=sh", "--exclude=SC2016,SC2064,SC2086,SC2154,SC3045", "-"],
        input=block, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


names = st.text("abcxyz019-_.", min_size=1, max_size=6).filter(lambda text: text[0] not in "-.")
numbers = st.integers(0, 120)


@st.composite
def hostlists(draw: st.DrawFn) -> str:
    def item() -> str:
        text = draw(names)
        for _ in range(draw(st.integers(0, 2))):
            width, ranges = draw(st.integers(1, 3)), []
            for _ in range(draw(st.integers(1, 3))):
                low = draw(numbers)
                ranges.append(
                    f"{low:0{width}}" + (f"-{low + draw(st.integers(0, 5)):0{width}}" if draw(st.booleans()) else "")
                )
            text += f"[{','.join(ranges)}]" + draw(st.sampled_from(["", "-ib", ".x", "n4"]))
        return text

    return ",".join(item() for _ in range(draw(st.integers(1, 4))))


@pytest.mark.parametrize("name", SHELLS)
def test_first_host_is_pythons_first_host(name: str) -> None:
    """Many lists in one shell; also with the shell options and separators that a script may have set."""
    source = (SHELL_FILES[0].parent / "first_host.sh").read_text()

    @SETTINGS
    @given(
        st.lists(hostlists(), min_size=30, max_size=30),
        st.sampled_from(["", "set -f;", "IFS=1a,;", "unset IFS;", "set -eu;"]),
    )
    def check(lists: list[str], prelude: str) -> None:
        calls = "".join(f"_tlmn_first_host '{each}'; echo \"$_tlmn_host\"\n" for each in lists)
        out = run_shell(name, f"{source}\n{prelude}\n{calls}", {"PATH": os.defpath}).stdout.decode()
        assert out.split("\n")[:-1] == [first_host(each) for each in lists]

    check()


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize("text", ["", "n1;x", "$(touch x)", "n 1", "n[1-2", "é[1-2]"])
def test_first_host_of_damaged_text_is_empty_or_a_plain_name(name: str, text: str, tmp_path: Path) -> None:
    source = (SHELL_FILES[0].parent / "first_host.sh").read_text()
    done = subprocess.run(
        [name, "-s"], input=f'{source}\n_tlmn_first_host "$LIST"; echo "<$_tlmn_host>"\n', text=True,
        env={"LIST": text, "PATH": os.defpath, "LC_ALL": "C"}, capture_output=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.strip() in ("<>", "<n1>")
    assert list(tmp_path.iterdir()) == []


@st.composite
def slurm_environments(draw: st.DrawFn) -> dict[str, str]:
    """What a task of a random step sees, sometimes with values that the user gave."""
    nodes = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    counts = [draw(st.integers(1, 4)) for _ in nodes]
    node = draw(st.integers(0, len(nodes) - 1))
    local = draw(st.integers(0, counts[node] - 1))
    environ = {
        "SLURM_JOB_ID": str(draw(st.integers(1, 10**8))),
        "SLURM_STEP_ID": str(draw(st.sampled_from([0, 0, 1, 2, 77, 4294967290]))),
        "SLURM_JOB_NODELIST": draw(hostlists()),
        "SLURM_STEP_NODELIST": draw(st.one_of(hostlists(), st.just(",".join(nodes)))),
        "SLURM_NTASKS": str(draw(st.integers(1, 99))),
        "SLURM_STEP_NUM_TASKS": str(sum(counts)),
        "SLURM_PROCID": str(sum(counts[:node]) + local),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local),
        "SLURM_DISTRIBUTION": draw(st.sampled_from(["block", "cyclic"])),
    }
    for name, values in (
        ("SLURM_RESTART_COUNT", st.integers(0, 9).map(str)),
        ("MASTER_ADDR", names),
        ("MASTER_PORT", st.integers(1024, 65535).map(str)),
    ):
        if draw(st.booleans()):
            environ[name] = draw(values)
    if draw(st.booleans()):
        del environ["SLURM_STEP_NODELIST"]
    return environ


@st.composite
def sky_environments(draw: st.DrawFn) -> dict[str, str]:
    nodes = draw(st.integers(1, 9))
    ips = [f"10.{draw(st.integers(0, 255))}.0.{n}" for n in range(nodes)]
    end = draw(st.sampled_from(["\n", "\r\n", "\n\n"]))
    environ = {
        "SKYPILOT_NODE_IPS": draw(st.sampled_from(["", "\n", "\r\n"]))
        + end.join(ips)
        + draw(st.sampled_from(["", end])),
        "SKYPILOT_NUM_NODES": str(nodes),
        "SKYPILOT_NODE_RANK": str(draw(st.integers(0, nodes - 1))),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(draw(st.integers(0, 9))),
    }
    if draw(st.booleans()):
        environ["MASTER_PORT"] = str(draw(st.integers(1024, 65535)))
    if draw(st.booleans()):
        environ["MASTER_ADDR"] = draw(names)
    return environ


def many(text: str, environs: list[dict[str, str]], name: str, then: str) -> list[dict[str, str]]:
    """Run one text in a subshell for each environment, in one process; the six values after each."""
    script = ""
    for environ in environs:
        exports = "".join(f"export {key}='{value}'\n" for key, value in environ.items())
        script += f"( {exports}{text}\n{then} )\necho '{MARK}'\n"
    out = run_shell(name, script, {"PATH": os.defpath}).stdout.decode()
    found = []
    for part in out.split(f"{MARK}\n")[:-1]:
        lines = [line.removeprefix("export ") for line in part.splitlines()]
        found.append(dict(line.split("=", 1) for line in lines if "=" in line))
    return found


@pytest.mark.parametrize("name", SHELLS)
def test_task_prolog_is_the_python_contract(name: str) -> None:
    prolog = shell.task_prolog()

    @SETTINGS
    @given(st.lists(slurm_environments(), min_size=10, max_size=10))
    def check(environs: list[dict[str, str]]) -> None:
        for environ, printed in zip(environs, many(prolog, environs, name, ":"), strict=True):
            assert {**environ, **printed}.items() >= Rendezvous.from_environ(environ).as_env().items()
            assert not {"MASTER_ADDR", "MASTER_PORT"} & environ.keys() & printed.keys()  # what was given is left alone

    check()


@pytest.mark.parametrize("name", SHELLS)
def test_sky_prefix_is_the_python_contract(name: str) -> None:
    show = "".join(f'echo "{each}=${each}"\n' for each in NAMES)

    @SETTINGS
    @given(st.lists(sky_environments(), min_size=10, max_size=10))
    def check(environs: list[dict[str, str]]) -> None:
        for environ, found in zip(environs, many(shell.sky_prefix(), environs, name, show), strict=True):
            assert found == Rendezvous.from_environ(environ).as_env()

    check()


@pytest.fixture
def batch(tmp_path: Path) -> dict[str, str]:
    """The environment of a batch shell whose sbcast copies on this machine; PATH holds nothing else that could help."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for command in ("chmod", "rm", "cat", "env", "sh"):
        (tools / command).symlink_to(shutil.which(command) or command)
    (tools / "sbcast").write_text(f'#!/bin/sh\n/bin/cp "$1" "$2" && echo "$2" >> {tmp_path}/copied\n')
    (tools / "sbcast").chmod(0o755)
    (tools / "srun").write_text('#!/bin/sh\nwhile case $1 in --*) ;; *) false ;; esac; do shift; done\nexec "$@"\n')
    (tools / "srun").chmod(0o755)
    job = str(10**9 + os.getpid() * 1000 + len(str(tmp_path)))
    return {
        "PATH": str(tools), "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "node[01-02]", "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }  # fmt: skip


@pytest.mark.parametrize("options", ["", "set -eu", "set -euf -C -a"])
@pytest.mark.parametrize("name", SHELLS)
def test_block_in_the_batch_shell(name: str, options: str, batch: dict[str, str], tmp_path: Path) -> None:
    after = 'for n in MASTER_ADDR MASTER_PORT NODE_RANK RANK LOCAL_RANK WORLD_SIZE; do eval "echo $n=\\$$n"; done\n'
    script = f"{options}\n{shell.slurm_block(2, 2)}\n{after}echo exported; env\necho set; set\n"
    done = run_shell(name, script, batch)
    values, _, rest = done.stdout.decode().partition("exported\n")
    exported, _, everything = rest.partition("set\n")
    assert dict(line.split("=") for line in values.split()) == {
        "MASTER_ADDR": "node01", "MASTER_PORT": str(derive_port(int(batch["SLURM_JOB_ID"]))), "WORLD_SIZE": "2",
        "NODE_RANK": "0", "RANK": "0", "LOCAL_RANK": "0",
    }  # fmt: skip
    names = {line.split("=")[0] for line in exported.splitlines()}
    assert {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "SLURM_TASK_PROLOG"} <= names
    assert not {"RANK", "LOCAL_RANK", "NODE_RANK"} & names
    assert "_tlmn_" not in everything
    assert done.stderr == b""
    assert not [path for path in (tmp_path / "copied").read_text().split() if Path(path).exists()]


@pytest.mark.parametrize("name", SHELLS)
def test_block_then_prolog_gives_the_python_contract_in_every_task(name: str, batch: dict[str, str]) -> None:
    """The batch shell's own defaults give way in each task, and a smaller step has its own world."""
    script = shell.slurm_block(2, 2) + '\ncat "$SLURM_TASK_PROLOG"\necho "' + MARK + '"\nenv\n'
    prolog, _, environ_text = run_shell(name, script, batch).stdout.decode().partition(MARK + "\n")
    exported = dict(line.split("=", 1) for line in environ_text.splitlines())
    del exported["SLURM_TASK_PROLOG"]
    for nodelist, size, rank, step in [("node[01-02]", 2, 0, 0), ("node[01-02]", 2, 1, 0), ("node02", 1, 0, 3)]:
        native = {
            "SLURM_JOB_ID": batch["SLURM_JOB_ID"], "SLURM_STEP_NODELIST": nodelist, "SLURM_STEP_NUM_TASKS": str(size),
            "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank), "SLURM_LOCALID": "0", "SLURM_STEP_ID": str(step),
        }  # fmt: skip
        out = run_shell("sh", prolog, {**exported, **native}).stdout.decode()
        printed = dict(line.removeprefix("export ").split("=", 1) for line in out.splitlines())
        expected = Rendezvous.from_environ(native).as_env()
        assert {name: {**exported, **printed}[name] for name in NAMES} == expected


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"])
def test_block_stops_where_nothing_is_known(missing: str, batch: dict[str, str]) -> None:
    del batch[missing]
    done = run_shell("bash", f"set -u\n{shell.slurm_block(2, 2)}\necho unreached\n", batch, check=False)
    assert done.returncode == 1
    assert missing in done.stderr.decode()
    assert b"unreached" not in done.stdout
    assert b"localhost" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", SHELLS)
def test_values_of_variables_are_never_executed(name: str, batch: dict[str, str], tmp_path: Path) -> None:
    evil = "a[$(touch made)]$(touch made)`touch made`';touch made;'\"; touch made; \""
    block, prolog, prefix = shell.slurm_block(2, 2), shell.task_prolog(), shell.sky_prefix()
    task = {**batch, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n1"}
    sky = {**batch, "SKYPILOT_NODE_IPS": "1\n2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "0"}
    rendezvous = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    native = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_NODELIST", "SLURM_NTASKS", "SLURM_PROCID")
    for text, environ, variables in (
        (block, batch, (*native, *rendezvous, "SLURM_TASK_PROLOG", "SLURM_SUBMIT_DIR", "SLURM_JOB_NUM_NODES")),
        (prolog, task, (*native, *rendezvous, "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS")),
        (prefix, sky, (*sky, "SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_TASK_ID", *rendezvous)),
    ):
        for variable in variables:
            if variable != "PATH":
                run_shell(name, f"cd '{tmp_path}'\n{text}\n", {**environ, variable: evil}, check=False)
                assert not (tmp_path / "made").exists(), variable


@pytest.mark.parametrize("name", SHELLS)
def test_prefix_stops_without_addresses(name: str) -> None:
    done = run_shell(name, f"{shell.sky_prefix()}echo unreached\n", {"SKYPILOT_NUM_NODES": "2"}, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"SKYPILOT_NODE_IPS is empty" in done.stderr


def test_long_lists_are_quick_enough_to_finish(batch: dict[str, str]) -> None:
    """10,000 nodes in the worst spelling: a quadratic expansion would take minutes and run into the test's limit."""
    for text in (
        "n[" + ",".join(str(2 * n + 1) for n in range(10_000)) + "]",
        ",".join(f"node{n:05}" for n in range(10_000)),
        ",".join(f"r[{n}]x[1-2]" for n in range(5_000)),
    ):
        done = run_shell(
            "bash", f"{shell.slurm_block(2, 2)}\necho $MASTER_ADDR\n", {**batch, "SLURM_JOB_NODELIST": text}
        )
        assert done.stdout.decode().strip() == first_host(text)


def test_the_files_are_in_the_package() -> None:
    assert {file.name for file in SHELL_FILES} >= {"first_host.sh", "slurm_block.sh", "task_prolog.sh", "sky_prefix.sh"}
    assert sys.version_info >= (3, 10)
