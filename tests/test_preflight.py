"""The rendezvous test without a cluster: what it concludes, what it withstands, and how it gets to other machines."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared_env import Rendezvous, commands, preflight
from shared_env.shell import sky_prefix
from tl_slurm_adapter.jobs import JobError, JobStatus
from tl_slurm_adapter.preflight_command import read_log

FILE = Path(preflight.__file__)
CASES = yaml.safe_load((Path(__file__).parent / "cases" / "rendezvous.yaml").read_text())
SIX = {"MASTER_ADDR": "127.0.0.1", "NODE_RANK": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}


def free_port() -> int:
    """A port below the ephemeral ones, so that nobody's outgoing connection takes it in the meantime."""
    while True:
        port = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


def start(rank: int, port: int, *options: str, world: int = 2, **env: str) -> subprocess.Popen[str]:
    """One process of the test, as a node has it: no site-packages, no project on its path."""
    given = {
        **SIX,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        **env,
    }
    return subprocess.Popen(
        [sys.executable, "-I", "-S", FILE, *options], env={"PATH": os.defpath, **given}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ends(*processes: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    out = []
    for process in processes:
        texts = process.communicate(timeout=60)
        assert "Traceback" not in texts[1]
        out.append((process.returncode, *texts))
    return out


# --- the file by itself --------------------------------------------------------------------------------------------


def test_it_runs_on_old_pythons_and_needs_the_standard_library_only() -> None:
    tree = ast.parse(FILE.read_text(), feature_version=(3, 6))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert (node.module or "").split(".")[0] in sys.stdlib_module_names


def test_its_text_fits_into_one_argument_of_a_command() -> None:
    assert len(preflight.run_text()) < 100_000  # MAX_ARG_STRLEN of Linux is 131072
    assert preflight.run_text(("--timeout=3",), "srun ").endswith('\nsrun python3 -c "$tl_preflight" --timeout=3\n')


def test_skypilot_run_text_with_the_prefix() -> None:
    """What tl-sky sends, run as two nodes of this machine, with GPUs: one process a node, whatever WORLD_SIZE says."""
    text = sky_prefix() + preflight.run_text(("--timeout=20",))
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}", "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "4", "SKYPILOT_TASK_ID": "sky-1",
        "MASTER_PORT": str(free_port()), "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    }  # fmt: skip
    nodes = [
        subprocess.Popen(["bash", "-c", text], env={**env, "SKYPILOT_NODE_RANK": rank}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in "01"
    ]  # fmt: skip
    first, second = ends(*nodes)
    assert first[0] == second[0] == 0, first[1] + first[2]
    assert "ok: 2 processes on 1 node met at 127.0.0.1:" in first[1]
    assert second[1:] == ("", "")


def test_an_installed_command_has_the_same_default_timeout() -> None:
    option = next(each for each in commands.group.commands["preflight"].params if each.name == "timeout")
    assert option.default == preflight.TIMEOUT


@pytest.mark.parametrize("case", [case for case in CASES if "expect" in case], ids=lambda case: case["id"])
def test_identity_agrees_with_the_contract(case: dict[str, Any]) -> None:
    """`shared-env preflight` hands over the values of Rendezvous; they must come back unchanged."""
    here = Rendezvous.from_environ(case["environ"])
    if here.system == "torchrun":
        with pytest.raises(preflight.EnvironmentUnusableError, match="in place of torchrun"):
            preflight.identity(case["environ"])
        return
    record = preflight.identity({**case["environ"], **here.as_env()})
    if here.system == "skypilot":
        assert record["world_size"] == record["started"] == int(case["environ"]["SKYPILOT_NUM_NODES"])
        record["world_size"] = here.world_size
    assert all(record[name.lower()] == getattr(here, name.lower()) for name in preflight.NAMES)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": ""}, "RANK is not set in this process: start it with `tl-slurm preflight`"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' is not a number"),
        ({"RANK": "-1"}, "RANK='-1' is not a number"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT=65536 is not a port"),
        ({"TORCHELASTIC_RUN_ID": "x"}, "run the preflight in place of torchrun"),
    ],
)
def test_unusable_environment(change: dict[str, str], words: str) -> None:
    [(status, out, err)] = ends(start(0, 29500, **change))
    assert (status, out) == (1, "")
    assert words in err


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 7),
        ({"OMPI_COMM_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}, 4),
        ({"SKYPILOT_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "1"}, 2),
        ({"SLURM_STEP_NUM_TASKS": "3"}, 3),
        ({"SLURM_STEP_NUM_TASKS": ""}, 7),
    ],
)
def test_started_processes(environ: dict[str, str], count: int) -> None:
    assert preflight.started_processes(environ, 7) == count


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8a, MIG-1", "SLURM_GPUS_ON_NODE": "8"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"ROCR_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
    ],
)
def test_gpu_count(environ: dict[str, str], count: int) -> None:
    assert preflight.gpu_count(environ) == count


def test_gpu_count_asks_nvidia_smi_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert preflight.gpu_count({}) == 0
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\n[ $1 = -L ] && echo 'GPU 0: L4 (UUID: a)' && echo 'GPU 1: L4 (UUID: b)'\n")
    smi.chmod(0o755)
    assert preflight.gpu_count({}) == 2


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({}, ""),
        ({"NCCL_SOCKET_IFNAME": "eth"}, ""),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "NCCL_SOCKET_IFNAME==eth"),
        ({"NCCL_SOCKET_IFNAME": "=eth0,ib9"}, ""),
        ({"NCCL_SOCKET_IFNAME": "^docker,lo"}, ""),
        ({"NCCL_SOCKET_IFNAME": "ens"}, "NCCL_SOCKET_IFNAME=ens"),
        ({"GLOO_SOCKET_IFNAME": "eth0,ib0"}, ""),
        ({"GLOO_SOCKET_IFNAME": "eth"}, "GLOO_SOCKET_IFNAME=eth"),
    ],
)
def test_unknown_interface(environ: dict[str, str], fault: str) -> None:
    assert preflight.unknown_interface(environ, ["lo", "eth0", "ib0"]) == fault


# --- on this machine -----------------------------------------------------------------------------------------------


def test_two_processes_meet() -> None:
    port = free_port()
    second, first = ends(start(1, port), start(0, port, "--json"))
    assert first[0] == second[0] == 0, first[1] + first[2]
    verdict = json.loads(first[1])
    assert (verdict["ok"], len(verdict["ranks"])) == (True, 2)
    assert second[1:] == ("", "")
    # The port is free again at once, for the job itself.
    with socket.socket() as after:
        after.bind(("", port))


def test_a_name_service_that_does_not_answer_keeps_nobody(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    released = threading.Event()

    def silence(*_: Any, **__: Any) -> None:
        released.wait(60)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", silence)
    environ = {**SIX, "RANK": "1", "MASTER_PORT": "29500"}
    assert preflight.run(environ, timeout=0.2) == 1
    released.set()
    assert "does not get on: this process is still asking the name service" in capsys.readouterr().err


def test_strangers_on_the_port_of_rank_0_do_not_count() -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        first = start(0, port)
        for text in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff\xfe\n",
            b"{}\n",
            b'{"rank": 0, "left": 0}\n',
            b"[1]\n",
            b"x" * 100_000,
            b"",
        ):
            stranger = stack.enter_context(_connected(port))
            with contextlib.suppress(OSError):
                stranger.sendall(text)
        half = stack.enter_context(_connected(port))
        half.sendall(b'{"rank"')
        second = start(1, port)
        assert [status for status, *_ in ends(first, second)] == [0, 0]


@pytest.mark.parametrize(
    ("greeting", "title"),
    [
        (b"220 mail.example ESMTP\r\n", "port taken: .*another program"),
        (b"", "port taken: .*another program"),
        (b'{"hello": "shared-env preflight", "job": "77"}\n', "port taken: .*the preflight of job 77"),
        (b'{"hello": "shared-env preflight", "job": ""}\n', "connection lost: .*rank 0 went away"),
    ],
)
def test_somebody_else_answers(greeting: bytes, title: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer, args=(server, greeting))
        thread.start()
        [(status, out, err)] = ends(start(1, server.getsockname()[1], "--timeout=1"))
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert (status, out) == (1, "")
    assert re.search(title, err), err
    assert err.count("\n") == 1


def test_rank_0_twice_on_one_machine() -> None:
    port = free_port()
    results = ends(start(0, port, LOCAL_RANK="0"), start(0, port, LOCAL_RANK="1"))
    assert [status for status, *_ in results] == [1, 1]
    [text] = [out for _, out, _ in results if out]
    assert "RANK=0 in 2 processes" in text
    assert "port taken" not in text


def test_a_port_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def denied(port: int) -> socket.socket:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(preflight, "listen", denied)
    assert preflight.run({**SIX, "MASTER_PORT": str(free_port())}, timeout=0.5) == 1
    text = capsys.readouterr().out
    assert "cannot be opened: Permission denied" in text
    assert "missing" not in text


def test_512_ranks() -> None:
    """All the traffic of 512 ranks, on one port of this machine."""
    world, port = 512, free_port()
    deadline = time.monotonic() + 60

    def record(rank: int) -> dict[str, Any]:
        return {
            **known(rank, world),
            "pid": rank,
            "master_addr": "127.0.0.1",
            "master_port": port,
            "code": "stuck",
        }

    records = [record(rank) for rank in range(world)]
    preflight.raise_file_limit()
    server = preflight.Server(records[0], deadline)
    server.start()
    answers: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda each=each: answers.append(preflight.meet(each, deadline))) for each in records
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.join()
    assert answers == [{"ok": True}] * world
    assert [each["rank"] for each in server.verdict["ranks"]] == list(range(world))


def test_a_record_is_one_short_line_whatever_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    nets = {"eth0": "10.0.0.1/24", **{f"veth{number:08d}": f"10.1.{number}.1/24" for number in range(200)}}
    monkeypatch.setattr(preflight, "interfaces", lambda: dict(nets))
    record = preflight.identity({**SIX, "MASTER_PORT": "29500", "MASTER_ADDR": "n" * 63, "SLURM_JOB_ID": "1234567"})
    preflight.facts(record, {"NCCL_SOCKET_IFNAME": "ens"})
    record.update(resolved=["fe80::1234:5678:9abc:def0%eth0"] * 4, addr="10.0.0.1", seen="10.0.0.1", via="10.0.0.1")
    line = preflight.MARK + json.dumps(record, separators=(",", ":"))
    assert len(line) < preflight.LONGEST_LINE
    assert record["nets"]["eth0"] == "10.0.0.1/24"
    mixed = f"(worker1, rank=1, pid=7) {line}\nnoise\npreflight-record {{broken\nsrun: {line}"
    assert preflight.records_in(mixed) == [record, record]


def _connected(port: int) -> socket.socket:
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 20)
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.05)


def _answer(server: socket.socket, greeting: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(greeting)
                if b"job" in greeting:
                    connection.recv(10_000)


# --- conclusions ---------------------------------------------------------------------------------------------------


def known(rank: int, world: int = 3, /, **changes: Any) -> dict[str, Any]:
    """The record of a process that met rank 0, one on each node."""
    record = {
        "rank": rank, "node_rank": rank, "local_rank": 0, "world_size": world, "started": world, "pid": 7,
        "host": f"n{rank}", "node": f"n{rank}", "master_addr": "n0", "master_port": 29500, "job": "1", "gpus": 2,
        "nets": {"docker0": "172.17.0.1/16", "eth0": f"10.0.{rank // 200}.{rank % 200 + 1}/16"},
        "resolved": ["10.0.0.1"], "local": rank == 0, "own": f"10.0.0.{rank + 1}", "gloo": True, "ifname": "",
        "addr": f"10.0.0.{rank + 1}", "seen": f"10.0.0.{rank + 1}", "via": "10.0.0.1", "code": "", "detail": "",
        "python": "3.12.1", "torch": "",
    }  # fmt: skip
    return {**record, **changes}


def failed(rank: int, code: str, /, **changes: Any) -> dict[str, Any]:
    record = known(rank, code=code, detail="the words", **changes)
    return {name: value for name, value in record.items() if name not in ("addr", "seen", "via")}


IB = {"ib0": "10.9.0.1/16"}


@pytest.mark.parametrize(
    ("records", "codes", "words"),
    [
        ([known(0), known(1), known(2)], [], "ok: 3 processes on 3 nodes met at n0:29500"),
        ([known(0), known(1)], ["missing"], "rank 2 did not report; nothing came from n2"),
        ([known(0)], ["missing"], "ranks 1-2 did not report; nothing came from n1, n2"),
        ([known(0), known(1), failed(2, "stuck")], ["stuck"], "still the words"),
        ([known(0), known(1), failed(2, "lost")], ["lost"], "to n0:29500 (10.0.0.1) ended: the words"),
        ([known(0), failed(1, "refused"), failed(2, "refused")], ["refused"], "FAULT: port refused (n1, n2)"),
        ([known(0), known(1), failed(2, "refused")], ["refused"], "refuses, although rank 0 listened"),
        ([failed(1, "refused"), failed(2, "refused")], ["refused", "missing"], "nobody listens there"),
        # IPv6 is not in the list of interfaces, so nothing follows from that
        ([known(0), known(1), failed(2, "no-answer", resolved=["fd00::1"])], ["no-answer"], "(fd00::1) does not"),
        # n2 has another idea of the name
        ([known(0), known(1), failed(2, "no-answer", resolved=["10.0.0.77"])], ["wrong-interface"], "no address of n0"),
        # a public address in front of rank 0 that it reaches, but n2 does not: nobody can tell more than that
        (
            [known(0, resolved=["8.8.8.8"], local=True), failed(2, "no-answer", resolved=["8.8.8.8"]), known(1)],
            ["no-answer"], "n0:29500 (8.8.8.8) does not answer",
        ),
        # docker0 has the same address everywhere: no network between hosts
        (
            [known(0, nets={"docker0": "172.17.0.1/16", **IB}, resolved=["10.9.0.1"]), known(1),
             failed(2, "unreachable", resolved=["10.9.0.1"], nets={"docker0": "172.17.0.1/16"})],
            ["unreachable"], "the words",
        ),
        # the owner of the port and those that met it are one fault, not three
        (
            [failed(0, "stranger", taken="Address already in use"), failed(1, "stranger"), failed(2, "refused")],
            ["port-taken"], "another program has port 29500 of n0",
        ),
        ([known(0, resolved=["127.0.1.1"]), known(1), known(2)], [], "ok: 3"),
        ([known(0, resolved=["127.0.1.1"]), known(1)], ["missing"], "rank 2"),
        ([known(0), known(1, node_rank=0), known(2)], ["duplicate-rank"], "NODE_RANK=0 on n0, n1"),
        ([known(0), known(1, rank=1), known(2, rank=1)], ["duplicate-rank"], "RANK=1 in 2 processes, on n1, n2"),
        ([known(0), known(1, master_port=1), known(2)], ["settings"], "MASTER_PORT differs: 29500 on n0, n2, 1 on n1"),
        ([known(0), known(1, world_size=4), known(2)], ["settings"], "WORLD_SIZE differs: 3 on n0, n2, 4 on n1"),
        ([known(0), known(1, gpus=1), known(2)], ["gpus"], "GPUs of a process: 2 on n0, n2, 1 on n1"),
        ([known(0), known(1, torch="2.0"), known(2, torch="2.1")], [], "WARNING: versions differ"),
        ([known(0), known(1, gloo=False, own="127.0.1.1"), known(2)], [], "set in env: NCCL_SOCKET_IFNAME=eth0"),
        # one host only: nothing of the network matters
        ([known(rank, node="n0", node_rank=0, local_rank=rank, gloo=False) for rank in range(3)], [], "on 1 node met"),
    ],
)  # fmt: skip
def test_conclusions(records: list[dict[str, Any]], codes: list[str], words: str, capsys: Any) -> None:
    before = json.dumps(records)
    verdict = preflight.judge(records, ["n0", "n1", "n2"])
    assert [each["code"] for each in verdict["faults"]] == codes
    assert verdict["ok"] == (not codes)
    preflight.show(verdict, as_json=False, export_hints=False)
    text = capsys.readouterr().out
    assert words in text
    assert json.dumps(records) == before
    assert text.isascii()
    preflight.show(verdict, as_json=True, export_hints=False)
    assert json.loads(capsys.readouterr().out)["faults"] == verdict["faults"]


def test_interfaces_of_different_names(capsys: Any) -> None:
    other = {"ens3": "10.0.0.3/16", "docker0": "172.17.0.1/16"}
    verdict = preflight.judge([known(0), known(1), known(2, nets=other, gloo=False)])
    # NCCL takes a list; gloo's name must exist on every host, so there is none to give
    assert preflight.hint_lines(verdict) == "export NCCL_SOCKET_IFNAME=eth0,ens3\n"
    preflight.show(verdict, as_json=False, export_hints=True)
    assert capsys.readouterr().out == "export NCCL_SOCKET_IFNAME=eth0,ens3\n"


def test_the_page_names_every_fault() -> None:
    page = (FILE.parents[1] / "docs" / "preflight.md").read_text()
    tables = re.findall(r"^\| it says \|.*\n\|---\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert {line.split("|")[1].strip() for table in tables for line in table.splitlines()} == {
        *preflight.TITLES.values()
    }


def test_a_log_that_comes_late_is_waited_for() -> None:
    """On a network file system the login host may see the end of a log seconds after the end of the job."""
    lines = [(preflight.MARK + json.dumps(known(rank, 2)) + "\n").encode() for rank in range(2)]
    states: list[list[bytes] | None] = [None, [], lines[:1], lines]

    class LateJob:
        def logs(self) -> list[bytes]:
            if (now := states.pop(0)) is None:
                raise JobError("not there")
            return now

    done = JobStatus("1", "succeeded", "COMPLETED")
    assert read_log(LateJob(), done) == b"".join(lines).decode()  # type: ignore[arg-type]
    states[:] = [lines[:1]]
    assert read_log(LateJob(), JobStatus("1", "failed", "FAILED")) == lines[0].decode()  # type: ignore[arg-type]
    states[:] = [None]
    with pytest.raises(JobError, match="not there"):
        read_log(LateJob(), done, patience=0)  # type: ignore[arg-type]


def test_no_hint_without_an_interface_to_blame() -> None:
    assert preflight.judge([known(0), known(1)])["hints"] == {}


def test_many_ranks_stay_readable() -> None:
    verdict = preflight.judge([known(rank, 512) for rank in range(0, 512, 2)], [f"n{rank}" for rank in range(512)])
    text = preflight.report(verdict)
    assert "n1, n3, n5, n7, n9, n11, n13, n15 and 248 more" in text
    assert max(map(len, text.splitlines())) < 250
    assert preflight._spans([3, 1, 2, 7, 5, 6]) == "1-3, 5-7"
