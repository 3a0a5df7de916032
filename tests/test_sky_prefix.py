"""The text before a SkyPilot run command: defaults only, and the command keeps its behaviour and its status."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared_env import EnvError, Rendezvous
from shared_env.contract import NAMES
from shared_env.skypilot import task_port
from tl_sky_adapter import prefix_run

SHELLS = ("bash", "dash")
RECORDS = yaml.safe_load((Path(__file__).parent / "cases" / "rendezvous.yaml").read_text())
SKY_RECORDS = [record for record in RECORDS if "SKYPILOT_NODE_RANK" in record["environ"]]
TASK_ID = "sky-2026-11-02-09-15-22-401893_trainer_3"
NATIVE = {
    "PATH": os.defpath,
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_GPUS_PER_NODE": "0",
    "SKYPILOT_TASK_ID": TASK_ID,
}
SHOW = "\n".join(f'echo "{name}=${name}"' for name in NAMES) + "\n"
PET = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ID")


def run(text: str, environ: dict[str, str] | None = None, name: str = "bash") -> subprocess.CompletedProcess[str]:
    """A run command as a script file, as SkyPilot has it."""
    return subprocess.run(
        [shutil.which(name) or name, "/dev/stdin"], input=text.encode(), env={**NATIVE, **(environ or {})},
        capture_output=True, timeout=60, encoding=None,
    )  # fmt: skip


def values(text: str, environ: dict[str, str] | None = None, name: str = "bash") -> dict[str, str]:
    done = run(text, environ, name)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.decode().splitlines())


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize("record", SKY_RECORDS, ids=lambda record: record["id"])
def test_case(record: dict[str, object], name: str) -> None:
    """Every recorded SkyPilot environment, in shell."""
    environ = dict(record["environ"])  # type: ignore[call-overload]
    done = subprocess.run(
        [shutil.which(name) or name, "-s"], input=prefix_run(SHOW, 2), env=environ, capture_output=True, text=True
    )
    if record["id"] == "B113b":  # two addresses for three nodes: the shell has no reason to stop, the processes have
        with pytest.raises(EnvError, match="SKYPILOT_NODE_IPS"):
            Rendezvous.from_environ(environ)
    elif record.get("error"):
        assert (done.returncode, done.stdout) == (1, "")
        assert str(record["mentions"]) in done.stderr
    else:
        expect = {key: str(value) for key, value in record["expect"].items()}  # type: ignore[attr-defined]
        assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == expect


def test_the_records_are_all_here() -> None:
    assert len(SKY_RECORDS) == 9


@pytest.mark.parametrize("text", [None, "", "echo 1\n"])
def test_one_node_and_nothing_to_run_come_back_unchanged(text: str | None) -> None:
    assert prefix_run(text, 1) is text
    assert prefix_run(text, 0) is text
    if not text:
        assert prefix_run(text, 4) is text
        assert prefix_run(text, 4, launch="per-node") is text


@given(run=st.text(min_size=1), nodes=st.integers(2, 9), launch=st.sampled_from(["script", "per-node"]))
def test_the_command_is_not_touched_and_gets_one_prefix(run: str, nodes: int, launch: str) -> None:
    once = prefix_run(run, nodes, launch=launch)
    assert once.endswith("\n" + run)
    for again in ("script", "per-node"):
        assert prefix_run(once, nodes, launch=again) == once
        assert prefix_run("\n" + once, nodes, launch=again) == "\n" + once


@pytest.mark.parametrize(("value", "error", "words"), [
    (["a", "b"], TypeError, "list"),
    (lambda rank, ips: "a", TypeError, "function"),
    (b"a", TypeError, "bytes"),
])  # fmt: skip
def test_a_run_that_is_no_text_is_refused(value: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        prefix_run(value, 2)  # type: ignore[call-overload]
    assert prefix_run(value, 1) is value  # type: ignore[call-overload]


def test_an_unknown_launch_is_refused() -> None:
    with pytest.raises(ValueError, match="per-node"):
        prefix_run("a", 2, launch="per_node")


STARTS = {
    "comment": "# a comment\nexit 3\n",
    "shebang": "#!/usr/bin/env python3\nexit 4\n",
    "blank lines": "\n\n  \nexit 5",
    "if": "if false; then :; else exit 6; fi\n",
    "here-doc": "cat <<'EOF'\n$MASTER_ADDR 'x' \"y\"\nEOF\nexit 7\n",
    "here-doc with expansion": "cat <<EOF\n${RANK}\nEOF\nexit 8\n",
    "function": "f() {\n  return 9\n}\nf\n",
    "brace": "{ (exit 10); }",
    "continuation": "\\\nexit \\\n 11\n",
    "CRLF": "echo one\r\nexit 12\r\n",
    "CRLF if": "if true; then\r\n  exit 13\r\nfi\r\n",
    "last command": "true\nfalse",
    "success": "false\ntrue\n",
    "strict": "set -euo pipefail\nfalse | true\necho unreached\n",
    "strict unset": "set -euo pipefail\necho $NOT_SET\n",
    "strict ok": "set -euo pipefail\necho $MASTER_ADDR\n",
    "status of nothing": "exit $?\n",
    "arguments": 'echo "$0 $# $-"\nexit 14\n',
    "semicolon": "; exit 15\n",
    "unfinished quote": "echo 'a\n",
    "trap": "trap 'echo bye; exit 16' EXIT\n",
    "and list": "false &&\ntrue\n",
    "not ASCII": "echo 'é 漢'\nexit 17\n",
}


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize("text", STARTS.values(), ids=STARTS)
def test_a_run_behaves_as_without_the_prefix(text: str, name: str) -> None:
    exports = "".join(f"export {key}={value!r}\n" for key, value in values(prefix_run(SHOW, 2)).items())
    plain, prefixed = run(exports + text, name=name), run(prefix_run(text, 2), name=name)
    assert (prefixed.returncode, prefixed.stdout) == (plain.returncode, plain.stdout)


@pytest.mark.parametrize("options", ["-eu", "-a", "-f", "-C", "-eufaC"])
@pytest.mark.parametrize("launch", ["script", "per-node"])
def test_under_any_shell_option(options: str, launch: str) -> None:
    text = f"set {options}\nbefore=$-\n{prefix_run('[ $- = $before ]', 2, launch=launch)}"
    for environ in ({}, {"MASTER_PORT": "auto"}):
        assert run(text + "\nset | grep _tlmn; exit 0", environ).stdout == b""
        assert run(text, environ).returncode == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["7", "it's $(touch made) `x`"])
def test_each_of_the_six_can_be_overridden(name: str, value: str) -> None:
    plain = values(prefix_run(SHOW, 2))
    assert values(prefix_run(SHOW, 2), {name: value}) == {**plain, name: value}


def test_native_variables_stay_and_nothing_else_is_left() -> None:
    before = set(run("env | cut -d= -f1").stdout.split())
    after = set(run(prefix_run("env | cut -d= -f1", 2), {"MASTER_PORT": "auto"}).stdout.split())
    assert after - before == {name.encode() for name in NAMES}
    shown = run(prefix_run("env | grep ^SKYPILOT | sort", 2)).stdout
    assert shown == run("env | grep ^SKYPILOT | sort").stdout


@pytest.mark.parametrize("name", SHELLS)
@pytest.mark.parametrize("ips", ["", "\n", "\r\n\r\n", None])
def test_no_addresses_is_an_error(name: str, ips: str | None) -> None:
    environ = {"SKYPILOT_NODE_IPS": ips} if ips is not None else {}
    text = "unset SKYPILOT_NODE_IPS\n" * (ips is None) + prefix_run("echo unreached", 2)
    done = run(text, environ, name)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"SKYPILOT_NODE_IPS is empty" in done.stderr
    assert b"set MASTER_ADDR in envs" in done.stderr
    assert run(text, {**environ, "MASTER_ADDR": "m"}, name).stdout == b"unreached\n"


clusters = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
task_ids = st.one_of(
    st.builds("sky-{:%Y-%m-%d-%H-%M-%S-%f}_{}_{}".format, st.datetimes(), clusters, st.integers(1, 10**6)),
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=40),
)  # fmt: skip


@pytest.mark.parametrize("name", SHELLS)
def test_port_auto_is_the_same_rule_in_python_and_in_shell(name: str) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(task_ids, min_size=5, max_size=5))
    def check(ids: list[str]) -> None:
        for task_id in ids:
            environ = {"SKYPILOT_TASK_ID": task_id, "MASTER_PORT": "auto"}
            done = run(prefix_run("echo $MASTER_PORT", 2), environ, name)
            if any(char in "0123456789" for char in task_id):
                port = task_port(task_id)
                assert 10000 <= port <= 32767
                assert done.stdout.decode().strip() == str(port)
                assert Rendezvous.from_environ({**NATIVE, **environ}).master_port == port
            else:
                assert done.returncode == 1
                assert b"SKYPILOT_TASK_ID has no number" in done.stderr
                with pytest.raises(EnvError, match="SKYPILOT_TASK_ID"):
                    Rendezvous.from_environ({**NATIVE, **environ})

    check()


@given(st.integers(1, 10**6))
def test_jobs_of_one_moment_have_different_ports(job: int) -> None:
    base = TASK_ID.rpartition("_")[0]
    assert len({task_port(f"{base}_{job + offset}") for offset in range(8)}) == 8


def test_port_auto_says_where_it_comes_from() -> None:
    here = Rendezvous.from_environ({**NATIVE, "MASTER_PORT": "auto"})
    assert "SKYPILOT_TASK_ID" in here.sources["MASTER_PORT"]


@pytest.mark.parametrize(("gpus", "nproc"), [("0", "1"), ("4", "4"), ("", "1"), ("x", "1")])
def test_per_node_gives_torchruns_defaults(gpus: str, nproc: str) -> None:
    text = prefix_run("env | grep ^PET_ | sort", 2, launch="per-node")
    environ = {"SKYPILOT_NUM_GPUS_PER_NODE": gpus}
    assert values(text, environ) == {
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": nproc, "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29500", "PET_RDZV_ID": TASK_ID,
    }  # fmt: skip
    for name in PET:
        assert values(text, {**environ, name: "mine"})[name] == "mine"


def test_torchruns_defaults_follow_what_was_given_and_are_there_in_that_mode_only() -> None:
    given = {"MASTER_ADDR": "m", "MASTER_PORT": "1234", "NODE_RANK": "0"}
    found = values(prefix_run("env | grep ^PET_", 2, launch="per-node"), given)
    assert (found["PET_MASTER_ADDR"], found["PET_MASTER_PORT"], found["PET_NODE_RANK"]) == ("m", "1234", "0")
    assert run(prefix_run("env | grep ^PET_", 2)).stdout == b""


def test_the_prefix_starts_no_process() -> None:
    for launch in ("script", "per-node"):
        done = run(f"PATH=/nowhere\n{prefix_run('echo $MASTER_PORT', 2, launch=launch)}", {"MASTER_PORT": "auto"})
        assert (done.returncode, done.stderr) == (0, b"")


def test_import_and_prefix_need_no_sky() -> None:
    code = (
        "import sys, tl_sky_adapter; tl_sky_adapter.prefix_run('a', 2); import tl_sky_adapter.cli; "
        "from tl_sky_adapter import sky_config, apply; "
        "assert not {'sky', 'yaml', 'pyslurm', 'tl_slurm_adapter'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code.replace("import tl_sky_adapter.cli; ", "")], check=True)
    subprocess.run([sys.executable, "-c", code.replace("'yaml', ", "")], check=True)
