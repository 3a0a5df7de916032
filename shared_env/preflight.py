#!/usr/bin/env python3
"""Do the processes of a multi-node job find each other? Seconds of test before hours of waiting.

Run it as every process of the job, where the six variables are set. Rank 0 listens on MASTER_PORT as torch would, every
rank reports to MASTER_ADDR:MASTER_PORT, and rank 0 prints a table and what is wrong. A rank that cannot reach rank 0
says why itself. Exit status 0: all met, 1: a fault, 2: wrong usage.

This file needs nothing but Python >= 3.6 and imports nothing of this project, so that `python3 -c "$text"` runs it on
nodes that have nothing installed (`run_text`). Hence the quoted annotations.
"""

import argparse
import contextlib
import ipaddress
import json
import os
import platform
import selectors
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    Record = dict[str, Any]  # what one process knows: JSON values only
    Finding = dict[str, Any]

NAMES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE")
TIMEOUT = 20.0  # seconds
GRACE = 2.0  # seconds that a verdict may come late
MARK = "preflight-record "
GREETING = "shared-env preflight"
# slurmstepd cuts longer lines (io.c, MAX_MSG_LEN), and the pieces of several tasks would mix.
LONGEST_LINE = 1000
MOST_NAMED = 8  # hosts or ranks in one sentence
# Codes of a failed attempt, the most telling first: a name has several addresses.
ATTEMPT_CODES = ("stranger", "refused", "no-answer", "unreachable")
MOVE = "set MASTER_ADDR="
SET_IFNAME = "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the interface between the nodes"
TITLES = {
    "resolve": "name does not resolve",
    "loopback": "loopback address",
    "wrong-interface": "wrong interface",
    "port-taken": "port taken",
    "stranger": "port taken",
    "refused": "port refused",
    "no-answer": "no answer, firewall?",
    "unreachable": "unreachable",
    "lost": "connection lost",
    "stuck": "does not get on",
    "missing": "missing",
    "duplicate-rank": "duplicate rank",
    "world-size": "world size and processes disagree",
    "settings": "settings differ",
    "gpus": "GPU counts differ",
    "own-name": "own name is a loopback address",
    "versions": "versions differ",
}


class EnvironmentUnusableError(Exception):
    """The environment of this process does not say which rank it is."""


# --- what this process is ----------------------------------------------------------------------------------------


def identity(environ: "Mapping[str, str]") -> "Record":
    """The six values and what the launcher says, from the environment alone.

    Raises:
        EnvironmentUnusableError: a variable is missing, or is no number.
    """
    if environ.get("TORCHELASTIC_RUN_ID"):
        raise EnvironmentUnusableError("torchrun itself has MASTER_PORT: run the preflight in place of torchrun")
    numbers = {}
    for name in NAMES:
        value = environ.get(name, "")
        if not value:
            raise EnvironmentUnusableError(
                name + " is not set in this process: start it with `tl-slurm preflight`, `tl-sky preflight` or "
                "`srun shared-env preflight` (if that is how it started, the task prolog did not run: see above)"
            )
        if name != "MASTER_ADDR":
            if not value.isdecimal():
                raise EnvironmentUnusableError(f"{name}={value!r} is not a number")
            numbers[name.lower()] = int(value)
    if not 1 <= numbers["master_port"] <= 65535:
        port = environ["MASTER_PORT"]
        raise EnvironmentUnusableError(f"MASTER_PORT={port} is not a port: give a number from 1024 to 65535")
    ips = environ.get("SKYPILOT_NODE_IPS", "").split()
    host = socket.gethostname()
    node = environ.get("SLURMD_NODENAME") or host
    if numbers["node_rank"] < len(ips):
        node = ips[numbers["node_rank"]]
    job = environ.get("SKYPILOT_TASK_ID") or environ.get("SLURM_JOB_ID", "")
    started = started_processes(environ, numbers["world_size"])
    gpus = environ.get("SKYPILOT_NUM_GPUS_PER_NODE", "")
    if ips and numbers["world_size"] == started * (int(gpus) if gpus.isdecimal() else 1):
        # There WORLD_SIZE counts GPUs, while one process a node is started; the nodes are what is tested.
        numbers["world_size"] = started
    return dict(
        numbers,
        master_addr=environ["MASTER_ADDR"],
        host=host,
        node=node,
        pid=os.getpid(),
        job=job,
        started=started,
        code="stuck",  # until it is known how it ended
        detail="starting",
    )


def started_processes(environ: "Mapping[str, str]", world_size: int) -> int:
    """How many processes the launcher started, whatever WORLD_SIZE says; WORLD_SIZE where no launcher tells.

    >>> started_processes({"SLURM_STEP_NUM_TASKS": "3"}, 5)
    3
    """
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SKYPILOT_NUM_NODES", "SLURM_STEP_NUM_TASKS"):
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return world_size


def node_names(environ: "Mapping[str, str]") -> "list[str]":
    """The nodes of the job as the scheduler calls them; empty where that is not known."""
    if environ.get("SKYPILOT_NODE_IPS"):
        return environ["SKYPILOT_NODE_IPS"].split()
    text = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    return _output("scontrol", "show", "hostnames", text, timeout=1).split() if text else []


def facts(record: "Record", environ: "Mapping[str, str]") -> None:
    """Add what this machine has: addresses, GPUs, versions. May take seconds."""
    record["python"] = platform.python_version()
    record["torch"] = torch_version()
    record["nets"] = nets = interfaces()
    record["ifname"] = unknown_interface(environ, [name for _, name in socket.if_nameindex()])
    while nets and len(json.dumps(record)) > LONGEST_LINE - 350:
        nets.popitem()  # hosts of containers may have hundreds; those of the machine come first
    record["detail"] = "looking for its GPUs"
    record["gpus"] = gpu_count(environ)
    record["detail"] = "asking the name service for its own name"
    own = record["own"] = (addresses(record["host"]) or [""])[0]
    # gloo announces the address that the own name has here, and falls back to the loopback if that is not usable.
    record["gloo"] = bool(environ.get("GLOO_SOCKET_IFNAME")) or (is_local(own) and not is_loopback(own))


def torch_version() -> str:
    """The version of torch, without importing it; empty if there is none."""
    try:
        from importlib.metadata import version

        return version("torch")
    except Exception:  # not installed, damaged, or Python < 3.8
        return ""


def gpu_count(environ: "Mapping[str, str]") -> int:
    """The GPUs that this process may use.

    >>> gpu_count({"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_GPUS_ON_NODE": "8"})
    2
    """
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if name in environ:
            # CUDA stops at the first entry that is none; Slurm writes NoDevFiles for none.
            entries = [entry.strip() for entry in environ[name].split(",")]
            return len([entry for entry in entries if entry and entry not in ("-1", "NoDevFiles")])
    if environ.get("SLURM_GPUS_ON_NODE", "").isdecimal():
        return int(environ["SLURM_GPUS_ON_NODE"])
    return len([line for line in _output("nvidia-smi", "-L").splitlines() if line.startswith("GPU ")])


def interfaces() -> "dict[str, str]":
    """Interfaces that are up, with their IPv4 address and prefix length; the loopback is left out. (Linux)"""
    import fcntl

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:  # netdevice(7): SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFNETMASK
                flags, address, mask = (fcntl.ioctl(probe, call, request) for call in (0x8913, 0x8915, 0x891B))
            except OSError:
                continue  # no IPv4 address
            up_and_running = struct.unpack("H", flags[16:18])[0] & 0x41 == 0x41
            host = socket.inet_ntoa(address[20:24])
            if up_and_running and not is_loopback(host):
                found[name] = "{}/{}".format(host, bin(int.from_bytes(mask[20:24], "big")).count("1"))
    return found


def unknown_interface(environ: "Mapping[str, str]", names: "Sequence[str]") -> str:
    """NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME with its value, where it names no interface of this host.

    >>> unknown_interface({"NCCL_SOCKET_IFNAME": "eth"}, ["lo", "eth0"])
    ''
    >>> unknown_interface({"NCCL_SOCKET_IFNAME": "=eth"}, ["lo", "eth0"])
    'NCCL_SOCKET_IFNAME==eth'
    """
    nccl = environ.get("NCCL_SOCKET_IFNAME", "")
    # NCCL's documentation: a list of prefixes, or of whole names after "=", or of excluded ones after "^".
    if nccl and not nccl.startswith("^"):
        wanted = nccl.lstrip("=").split(",")
        same = str.__eq__ if nccl.startswith("=") else str.startswith
        if not any(same(name, each) for name in names for each in wanted):
            return "NCCL_SOCKET_IFNAME=" + nccl
    gloo = environ.get("GLOO_SOCKET_IFNAME", "")
    return "GLOO_SOCKET_IFNAME=" + gloo if gloo and not set(gloo.split(",")) <= set(names) else ""


def addresses(host: str) -> "list[str]":
    """The addresses of a name on this machine; none if it has none."""
    try:
        return _distinct(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return []


def _distinct(found: "Iterable[Any]") -> "list[str]":
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


def is_loopback(address: str) -> bool:
    """Whether an address (no name) leads nowhere but to this machine.

    >>> is_loopback("127.0.1.1"), is_loopback("10.0.0.1")
    (True, False)
    """
    try:
        return ipaddress.ip_address(address.split("%", maxsplit=1)[0]).is_loopback
    except ValueError:
        return False


def is_local(address: str) -> bool:
    """Whether this machine has the address: then a socket can be bound to it."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.bind(where)
    except (OSError, UnicodeError, IndexError):
        return False
    return bool(address)


def _output(*command: str, timeout: float = 5) -> str:
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=timeout).decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        return ""


# --- rank 0 ------------------------------------------------------------------------------------------------------


class Server(threading.Thread):
    """Rank 0's side: collects the reports until all are there or the time is over, then tells everybody the verdict.

    Args:
        own: the record of this process, which counts even if it cannot reach its own server.
        deadline: when to stop waiting, on the clock of time.monotonic.
        nodes: gives the names of the nodes of the job.

    Raises:
        OSError: the port cannot be opened.
    """

    def __init__(self, own: "Record", deadline: float, nodes: "Callable[[], list[str]]" = list) -> None:
        super().__init__(daemon=True)
        self.own, self.deadline, self.nodes = own, deadline, nodes
        self.verdict: "Record" = {}  # noqa: UP037
        self.reports: "list[Record]" = []  # noqa: UP037
        self._buffers: "dict[socket.socket, bytes]" = {}  # noqa: UP037
        self._met: "set[socket.socket]" = set()  # noqa: UP037
        self._listener = listen(own["master_port"])
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until the verdict has been given."""
        raise_file_limit()
        nodes = self.nodes()
        self._selector.register(self._listener, selectors.EVENT_READ)
        while len(self.reports) < self.own["started"] and time.monotonic() < self.deadline:
            for key, _ in self._selector.select(min(0.2, max(0, self.deadline - time.monotonic()))):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]
        self._selector.unregister(self._listener)
        self._listener.close()
        records = list(self.reports)
        if not any(process_key(each) == process_key(self.own) for each in records):
            records.append(dict(self.own))
        self.verdict = judge(records, nodes)
        text = _line({"ok": self.verdict["ok"]})
        for connection in list(self._buffers):
            if connection not in self._met:
                self._drop(connection)
                continue
            with contextlib.suppress(OSError):
                connection.send(text)
        # The other side closes first, so that no connection lingers here in TIME_WAIT on the port of the job.
        end = time.monotonic() + GRACE
        while self._buffers and time.monotonic() < end:
            for key, _ in self._selector.select(0.2):
                self._read(key.fileobj)  # type: ignore[arg-type]
        for connection in list(self._buffers):
            self._drop(connection)
        self._selector.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._buffers[connection] = b""
            self._selector.register(connection, selectors.EVENT_READ)
            seen, via = _plain(connection.getpeername()[0]), _plain(connection.getsockname()[0])
            connection.send(_line({"hello": GREETING, "job": self.own["job"], "seen": seen, "via": via}))

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        text = self._buffers.get(connection, b"") + data
        if not data or len(text) > 1 << 16 or connection.fileno() < 0:
            self._drop(connection)
            return
        self._buffers[connection] = text
        if text.endswith(b"\n") and connection not in self._met:
            record = _parsed(text)
            if not is_record(record):
                self._drop(connection)
                return
            self.reports.append(record)
            self._met.add(connection)
            # Its patience counts too: it started earlier than this process.
            self.deadline = min(self.deadline, time.monotonic() + record.get("left", 0))

    def _drop(self, connection: socket.socket) -> None:
        self._buffers.pop(connection, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()


def is_record(value: "Record") -> bool:
    """Whether a value that came from outside has what `identity` gives, and a time."""
    numbers = ("left", "rank", "local_rank", "node_rank", "world_size", "master_port", "started")
    return all(isinstance(value.get(name), (int, float)) for name in numbers) and all(
        isinstance(value.get(name), str) for name in ("host", "node", "master_addr", "code", "detail")
    )


def listen(port: int) -> socket.socket:
    """A listening socket on every address of this machine, IPv6 and IPv4, as torch's store has it."""
    try:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        where = "::"
    except OSError:  # a kernel without IPv6
        listener, where = socket.socket(socket.AF_INET, socket.SOCK_STREAM), ""
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((where, port))
        listener.listen(4096)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def raise_file_limit() -> None:
    """Every rank is one open connection; the usual soft limit is 1024 files."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- every rank --------------------------------------------------------------------------------------------------


def meet(record: "Record", deadline: float) -> "Record":
    """Report to rank 0 and return its verdict; empty, with `code` and `detail` in the record, if that fails."""
    pause = 0.05
    while True:
        verdict = _attempt(record, deadline)
        if verdict or record.get("code") == "lost" or deadline - time.monotonic() < 0.5 + pause:
            return verdict
        time.sleep(pause)
        pause = min(1.5 * pause, 0.5)


def _attempt(record: "Record", deadline: float) -> "Record":
    if record["code"] == "stuck":
        record["detail"] = "asking the name service for MASTER_ADDR"
    try:
        found = socket.getaddrinfo(record["master_addr"], record["master_port"], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        record.update(code="resolve", detail=str(getattr(error, "strerror", None) or error))
        return {}
    record["resolved"] = _distinct(found)[:4]
    record["local"] = any(is_local(each) for each in record["resolved"])
    failures = []
    for family, kind, proto, _, where in found:
        with socket.socket(family, kind, proto) as connection:
            try:
                connection.settimeout(max(0.5, min(3, deadline - time.monotonic())))
                connection.connect(where)
                if connection.getsockname() == connection.getpeername():
                    raise ConnectionRefusedError  # TCP met itself: nobody listens
            except ConnectionRefusedError:
                failures.append(("refused", ""))
            except socket.timeout:  # noqa: UP041 (an alias since Python 3.10 only)
                failures.append(("no-answer", ""))
            except OSError as error:
                timed_out = error.errno == 110
                failures.append(("no-answer", "") if timed_out else ("unreachable", str(error.strerror)))
            else:
                verdict, failure = _talk(connection, record, deadline)
                if verdict:
                    record.update(code="", detail="")
                    return verdict
                failures.append(failure)
                if failure[0] == "lost":
                    break
    code, detail = min(failures, key=lambda each: ATTEMPT_CODES.index(each[0]) if each[0] in ATTEMPT_CODES else -1)
    record.update(code=code, detail=detail)
    return {}


def _talk(connection: socket.socket, record: "Record", deadline: float) -> "tuple[Record, tuple[str, str]]":
    """The verdict, or why there is none."""
    try:
        connection.settimeout(max(0.5, min(5, deadline - time.monotonic())))
        with connection.makefile("rb") as lines:
            hello = _parsed(lines.readline(1 << 12))
            if hello.get("hello") != GREETING:
                return {}, ("stranger", "another program")
            if hello.get("job") != record["job"]:
                return {}, ("stranger", "the preflight of job {}".format(hello.get("job")))
            record.update(addr=_plain(connection.getsockname()[0]), seen=hello.get("seen"), via=hello.get("via"))
            left = deadline - time.monotonic()
            connection.sendall(_line(dict(record, code="", detail="", left=left)))
            connection.settimeout(max(0, left) + GRACE)
            verdict = _parsed(lines.readline(1 << 16))
            return verdict, ("lost", "rank 0 went away before it gave a verdict")
    except OSError:
        return {}, ("lost" if "addr" in record else "stranger", "no greeting came")


def _line(value: "Record") -> bytes:
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()


def _parsed(text: bytes) -> "Record":
    try:
        value = json.loads(text.decode("utf-8"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _plain(address: str) -> str:
    """An address without the IPv6 form of IPv4."""
    return address[7:] if address.startswith("::ffff:") else address


# --- the verdict -------------------------------------------------------------------------------------------------


def process_key(record: "Record") -> "tuple[Any, ...]":
    """What tells one process from all others."""
    return tuple(record.get(name) for name in ("host", "node", "pid", "rank", "local_rank"))


def judge(records: "Iterable[Record]", nodes: "Sequence[str]" = ()) -> "Record":
    """What the records together say: {"ok", "faults", "warnings", "ranks", "hints"}.

    Args:
        records: one for each process that is known of, whether it met rank 0 (then without `code`) or not.
        nodes: the names of the nodes of the job, to name one that is silent.
    """
    ranks = [dict(each) for each in {process_key(each): each for each in records}.values()]
    ranks.sort(key=lambda each: (each["rank"], each["node"]))
    zero = next((each for each in ranks if each["rank"] == 0 and not each.get("taken")), None)
    zero = zero or next((each for each in ranks if each["rank"] == 0), None)
    faults = _unreached(ranks, zero) + _duplicates(ranks) + _counts(ranks, zero, nodes) + _differences(ranks)
    for setting, who in _groups([each for each in ranks if each.get("ifname")], lambda each: each["ifname"]).items():
        faults.append(_finding("wrong-interface", who, setting + " names no interface here", SET_IFNAME))
    warnings = _warnings(ranks)
    hints = {}
    if any(each["code"] in ("wrong-interface", "own-name") for each in faults + warnings):
        hints = interface_hints(ranks, zero, moved=any(MOVE in each["fix"] for each in faults))
    return {"ok": not faults, "faults": faults, "warnings": warnings, "hints": hints, "ranks": ranks}


def _finding(code: str, ranks: "Iterable[Record]", text: str, fix: str) -> "Finding":
    where = list(dict.fromkeys(str(each["host"]) for each in ranks))
    return {"code": code, "title": TITLES[code], "hosts": where, "text": text, "fix": fix}


def _unreached(ranks: "list[Record]", zero: "Record | None") -> "list[Finding]":
    """Findings of the ranks that did not meet rank 0, one for each cause."""
    if zero and zero.get("taken") and zero.get("code"):
        port, host = zero["master_port"], zero["host"]
        text, fix = f"port {port} of {host} cannot be opened: {zero['taken']}", "set another MASTER_PORT in env"
        if "in use" in zero["taken"]:
            text, fix = f"another program has port {port} of {host}", f"ss -ltnp 'sport = :{port}' shows which; {fix}"
        return [_finding("port-taken", [zero], text, fix)]
    causes: "dict[tuple[str, str, str], list[Record]]" = {}  # noqa: UP037
    for each in ranks:
        if each.get("code"):
            causes.setdefault(_cause(each, zero), []).append(each)
    out = []
    for (cause, text, fix), who in causes.items():
        out.append(_finding(cause, who, text, fix))
        for each in who:
            each["state"] = TITLES[cause]
    return out


def _cause(record: "Record", zero: "Record | None") -> "tuple[str, str, str]":
    """Code, sentence and remedy for a rank that did not meet rank 0."""
    code, found = record["code"], record.get("resolved", [])
    elsewhere = zero["host"] != record["host"] if zero else record["node_rank"] > 0 and code == "refused"
    if elsewhere and found and all(map(is_loopback, found)):
        return ("loopback", *_loopback(record["master_addr"]))
    there = "{master_addr}:{master_port}".format(**record)
    if found not in ([], [record["master_addr"]]):
        there += " ({})".format(", ".join(found))
    if zero and found and code != "resolve":
        has = {address.split("/")[0]: name for name, address in zero.get("nets", {}).items()}
        outside = not zero.get("local", True)
        if found != zero.get("resolved"):
            outside = bool(has) and not set(found) & set(has) and not any(":" in each for each in found)
        if outside:
            return (
                "wrong-interface",
                "{} is no address of {}, where rank 0 runs ({})".format(there, zero["host"], _nets(zero)),
                "remove MASTER_ADDR from env, or give an address of {}".format(zero["host"]),
            )
        network = shared_network([zero, record])
        used = next((has[each] for each in found if each in has), "")
        if code in ("no-answer", "unreachable") and used and network and not _in_network(record, zero["nets"][used]):
            return (
                "wrong-interface",
                "{} is {} of {}; this host has no way there ({})".format(there, used, zero["host"], _nets(record)),
                f"{MOVE}{_address_in(zero, network)}, on the network that both have",
            )
    return (code, *_sentences(record, there, listens=bool(zero and not zero.get("code")))[code])


def _sentences(record: "Record", there: str, listens: bool) -> "dict[str, tuple[str, str]]":
    """What each code of an attempt means, and the remedy; `listens`: rank 0 is known to have met others."""
    detail = record["detail"]
    return {
        "resolve": (
            "MASTER_ADDR={!r} does not resolve: {}".format(record["master_addr"], detail),
            "add the name to DNS or /etc/hosts of that host, or use addresses: --master-addr=ip",
        ),
        "refused": (
            there + (" refuses, although rank 0 listened" if listens else " refuses: nobody listens there"),
            "a firewall rejects the port, or this process came when the others had given up (--timeout)"
            if listens
            else "see whether rank 0 runs on that host (is MASTER_ADDR or RANK set in env?); or a firewall rejects",
        ),
        "no-answer": (
            there + " does not answer: packets are dropped on the way",
            "allow TCP between the nodes in the firewall of this host and of rank 0's (or security group), "
            "or use another network for MASTER_ADDR",
        ),
        "unreachable": (
            f"{there} cannot be reached: {detail}",
            "a firewall rejects, or there is no route: use an address of a network that all nodes have "
            f"(this host: {_nets(record)})",
        ),
        "stranger": (
            f"{there} is answered, but not by rank 0 of this job: {detail}",
            "set another MASTER_PORT in env",
        ),
        "lost": (f"the connection to {there} ended: {detail}", "see why rank 0 ended in its output"),
        "stuck": (
            "this process is still " + detail,
            "see whether `getent hosts {master_addr}` and nvidia-smi answer on that host".format(**record),
        ),
    }


def _loopback(addr: str) -> "tuple[str, str]":
    return (
        f"MASTER_ADDR={addr!r} is a loopback address: on every host it is that host itself",
        "remove MASTER_ADDR from env, or give the name or address of rank 0's host as others see it",
    )


def _duplicates(ranks: "list[Record]") -> "list[Finding]":
    out = []
    by_rank = _groups(ranks, lambda each: each["rank"])
    for rank, who in by_rank.items():
        if len(who) > 1:
            text = "RANK={} in {} processes, on {}".format(rank, len(who), _some([each["host"] for each in who]))
            out.append(_finding("duplicate-rank", who, text, _per_process("RANK")))
            for each in who:
                each.setdefault("state", TITLES["duplicate-rank"])
    if out:
        return out[:MOST_NAMED]
    for number, who in _groups(ranks, lambda each: each["node_rank"]).items():
        if len({each["node"] for each in who}) > 1:
            text = "NODE_RANK={} on {}".format(number, _some([each["host"] for each in who]))
            out.append(_finding("duplicate-rank", who, text, _per_process("NODE_RANK")))
    for (node, _, number), who in _groups(ranks, lambda each: (each["node"], each["host"], each["local_rank"])).items():
        if len(who) > 1 and len({each["node_rank"] for each in who}) == 1:
            text = f"LOCAL_RANK={number} in {len(who)} processes on {node}: they would use the same GPU"
            out.append(_finding("duplicate-rank", who, text, _per_process("LOCAL_RANK")))
    return out[:MOST_NAMED]


def _per_process(name: str) -> str:
    return (
        f"remove {name} from env and from exports in the batch shell: every process needs its own "
        "(srun shared-env exec -- CMD sets it)"
    )


def _counts(ranks: "list[Record]", zero: "Record | None", nodes: "Sequence[str]") -> "list[Finding]":
    first = zero or ranks[0]
    world, started = first["world_size"], first["started"]
    out = []
    if world != started or any(each["rank"] >= each["world_size"] for each in ranks):
        beyond = [each["rank"] for each in ranks if each["rank"] >= world]
        never = f"ranks {_spans(range(started, world))} never come" if started < world else ""
        more = f"ranks {_spans(beyond)} have no place" if beyond else ""
        text = "WORLD_SIZE={}, but {} processes were started{}".format(
            world, started, "".join(": " + each for each in (never or more,) if each)
        )
        out.append(_finding("world-size", [first], text, "remove WORLD_SIZE from env, or start as many processes"))
    absent = sorted(set(range(min(world, started))) - {each["rank"] for each in ranks})
    if len(ranks) < started and not (zero and zero.get("taken")):
        silent = [name for name in nodes if name not in {each["node"] for each in ranks}]
        text = "rank{} {} did not report{}".format(
            "" if len(absent) == 1 else "s",
            _spans(absent) or "?",
            "; nothing came from " + _some(silent) if silent else "",
        )
        fix = "see the lines of these processes in the output, or whether they started (srun's messages, squeue -s)"
        finding = _finding("missing", [], text, fix)
        finding.update(hosts=silent, ranks=absent)
        out.append(finding)
        literal = zero.get("resolved", []) if zero else []
        if zero and not zero.get("code") and literal and all(map(is_loopback, literal)) and _is_literal(zero):
            out.insert(0, _finding("loopback", [zero], *_loopback(zero["master_addr"])))
    return out


def _is_literal(record: "Record") -> bool:
    """Whether MASTER_ADDR itself is a loopback; the own name may be one on its host without harm."""
    return is_loopback(record["master_addr"]) or record["master_addr"].startswith("localhost")


def _differences(ranks: "list[Record]") -> "list[Finding]":
    out = []
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        groups = _groups(ranks, lambda each: each[name.lower()])  # noqa: B023
        if len(groups) > 1:
            text = f"{name} differs: {_by_value(groups)}"
            out.append(_finding("settings", ranks, text, "set it once, the same for all, or not at all"))
    groups = _groups([each for each in ranks if "gpus" in each], lambda each: each["gpus"])
    if len(groups) > 1:
        fix = "ask for the same number on every node (--gpus-per-node), and set CUDA_VISIBLE_DEVICES nowhere"
        out.append(_finding("gpus", ranks, "GPUs of a process: " + _by_value(groups), fix))
    return out


def _warnings(ranks: "list[Record]") -> "list[Finding]":
    out = []
    own = [each for each in ranks if not each.get("gloo", True)]
    if own and len({each["node"] for each in ranks}) > 1:
        text = "the host's own name is {} there, which gloo would announce to the others".format(
            _some([each.get("own") or "unknown" for each in own])
        )
        out.append(_finding("own-name", own, text, SET_IFNAME))
    for name in ("python", "torch"):
        groups = _groups([each for each in ranks if each.get(name)], lambda each: each[name])  # noqa: B023
        if len(groups) > 1:
            out.append(_finding("versions", ranks, name + ": " + _by_value(groups), "use one environment on all nodes"))
    return out


def _groups(ranks: "Iterable[Record]", key: "Callable[[Record], Any]") -> "dict[Any, list[Record]]":
    out: "dict[Any, list[Record]]" = {}  # noqa: UP037
    for each in ranks:
        out.setdefault(key(each), []).append(each)
    return out


def _by_value(groups: "dict[Any, list[Record]]") -> str:
    parts = ["{} on {}".format(value, _some([each["host"] for each in who])) for value, who in groups.items()]
    return ", ".join(parts[:MOST_NAMED])


def _some(names: "Iterable[str]") -> str:
    each = list(dict.fromkeys(names))
    more = len(each) - MOST_NAMED
    return ", ".join(each[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _spans(numbers: "Iterable[int]") -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    spans: "list[list[int]]" = []  # noqa: UP037
    for number in sorted(set(numbers)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return _some("{}-{}".format(*each) if each[0] < each[1] else str(each[0]) for each in spans)


# --- interfaces --------------------------------------------------------------------------------------------------


def shared_network(records: "Sequence[Record]") -> str:
    """A network in which each of these hosts has an address of its own; empty if there is none."""
    hosts = list({each["host"]: each for each in records}.values())
    for text in hosts[0].get("nets", {}).values():
        network = str(ipaddress.ip_interface(text).network)
        own = [_address_in(each, network) for each in hosts]
        # docker0 is the same address on every host
        if all(own) and len(set(own)) == len(hosts):
            return network
    return ""


def carrier(record: "Record", network: "str | None") -> str:
    """The interface of a host in a network, or (None) the one by which it reaches rank 0."""
    for name, text in record.get("nets", {}).items():
        if network is None:
            if text.split("/")[0] == record.get("addr"):
                return str(name)
        elif str(ipaddress.ip_interface(text).network) == network:
            return str(name)
    return ""


def interface_hints(ranks: "list[Record]", zero: "Record | None", moved: bool) -> "dict[str, str]":
    """Variables that tie everything to the network between the nodes; MASTER_ADDR too if that must change (`moved`)."""
    network = shared_network(ranks)
    met = not moved and [each for each in ranks if carrier(each, None)]
    names = [carrier(each, None) for each in met] if met else [carrier(each, network) for each in ranks if network]
    distinct = list(dict.fromkeys(filter(None, names)))
    hints = {}
    if moved and network and zero:
        hints["MASTER_ADDR"] = _address_in(zero, network)
    if distinct:
        hints["NCCL_SOCKET_IFNAME"] = ",".join(distinct)
    if len(distinct) == 1:  # gloo needs one name, and it must exist on every host
        hints["GLOO_SOCKET_IFNAME"] = distinct[0]
    return hints


def _address_in(record: "Record", network: str) -> str:
    own = (ipaddress.ip_interface(each) for each in record.get("nets", {}).values())
    return next((str(each.ip) for each in own if str(each.network) == network), "")


def _in_network(record: "Record", text: str) -> bool:
    return bool(_address_in(record, str(ipaddress.ip_interface(text).network)))


def _nets(record: "Record") -> str:
    return _some("{} {}".format(name, text.split("/")[0]) for name, text in record.get("nets", {}).items()) or "none"


# --- output ------------------------------------------------------------------------------------------------------


def report(verdict: "Record") -> str:
    """The verdict as text: a table, then what is wrong and what to do."""
    ranks = verdict["ranks"]
    via = next((each["via"] for each in ranks if each.get("via") and not is_loopback(each["via"])), "")
    rows = [["RANK", "NODE", "LOCAL", "HOST", "ADDRESS", "OWN NAME", "GPUS", "PYTHON", "TORCH", "STATE"]]
    for each in ranks:
        address = each.get("seen") or each.get("addr") or ""
        if each["rank"] == 0 and is_loopback(address):
            address = via or address
        state = each.get("state") or TITLES.get(each.get("code"), "ok")
        cells = [each["rank"], each["node_rank"], each["local_rank"], each["host"], address]
        cells += [each.get("own"), each.get("gpus"), each.get("python"), each.get("torch"), state]
        rows.append(["-" if cell in (None, "") else str(cell) for cell in cells])
    absent = [rank for each in verdict["faults"] for rank in each.get("ranks", ())]
    rows += [[str(rank), *["-"] * 8, "missing"] for rank in absent[: 2 * MOST_NAMED]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]  # noqa: B905
    for kind in ("faults", "warnings"):
        for each in verdict[kind]:
            hosts = _some(each["hosts"])
            lines.append(kind[:-1].upper() + ": " + each["title"] + (f" ({hosts})" if hosts else ""))
            lines.append("  {text}\n  to do: {fix}".format(**each))
    if verdict["ok"]:
        count = len({each["node"] for each in ranks})
        where = "{master_addr}:{master_port}".format(**ranks[0])
        lines.append(f"ok: {len(ranks)} processes on {count} node{'s' * (count > 1)} met at {where}")
    return "\n".join(lines)


def hint_lines(verdict: "Record") -> str:
    """The variables to set, as shell lines; empty when no interface is to blame."""
    return "".join("export {}={}\n".format(*each) for each in verdict["hints"].items())


def show(verdict: "Record", as_json: bool, export_hints: bool) -> None:
    """Print a verdict on stdout; with `export_hints` the table goes to stderr and stdout is shell text."""
    if as_json:
        print(json.dumps(verdict))
    else:
        print(report(verdict), file=sys.stderr if export_hints else sys.stdout)
        if export_hints:
            print(hint_lines(verdict), end="")
        elif verdict["hints"]:
            print("  set in env: " + " ".join("{}={}".format(*each) for each in verdict["hints"].items()))


def records_in(text: str) -> "list[Record]":
    """The records in the mixed output of all ranks (printed with --records), whatever stands before them in a line."""
    parts = (line.partition(MARK) for line in text.splitlines())
    found = (_parsed(rest.encode("utf-8", "replace")) for _, mark, rest in parts if mark)
    return [each for each in found if is_record(dict(each, left=0))]


# --- the command -------------------------------------------------------------------------------------------------


def run(
    environ: "Mapping[str, str]",
    timeout: float = TIMEOUT,
    as_json: bool = False,
    export_hints: bool = False,
    records: bool = False,
) -> int:
    """Be one process of the test; returns the exit status. See the options of `main`."""
    try:
        record = identity(environ)
    except EnvironmentUnusableError as error:
        print(f"preflight: {socket.gethostname()}: {error}", file=sys.stderr)
        return 1
    deadline = time.monotonic() + timeout
    server = None
    if record["rank"] == 0:
        try:
            server = Server(record, deadline, lambda: node_names(environ))
            server.start()
        except OSError as error:
            record["taken"] = str(error.strerror)
    answer: "Record" = {}  # noqa: UP037
    # In a thread: name services, nvidia-smi and the like do not keep to a time of ours.
    client = threading.Thread(target=lambda: answer.update(_client(record, environ, deadline)), daemon=True)
    client.start()
    client.join(timeout + GRACE)
    if server is not None and (server.verdict or not answer):
        server.join(max(0, deadline - time.monotonic()) + 2 * GRACE)  # others still wait for its words
    if records:
        print(MARK + _line(record).decode(), end="", flush=True)
    elif server is not None and server.verdict:
        show(server.verdict, as_json, export_hints)
    elif record["rank"] == 0 and not answer:
        show(judge([record]), as_json, export_hints)
    elif not answer:
        print(_own_line(record), file=sys.stderr, flush=True)
    # The first process that fails may end the step (srun --kill-on-bad-exit): let rank 0 print its table first, which
    # may have started later.
    if not answer:
        time.sleep(max(0, deadline + GRACE * (2 if record["rank"] else 0.5) - time.monotonic()))
    elif not answer["ok"] and record["rank"] != 0:
        time.sleep(GRACE)
    return 0 if answer.get("ok") else 1


def _own_line(record: "Record") -> str:
    code, text, fix = _cause(record, None)
    return "preflight: {host} (rank {rank}): ".format(**record) + f"{TITLES[code]}: {text}; to do: {fix}"


def _client(record: "Record", environ: "Mapping[str, str]", deadline: float) -> "Record":
    facts(record, environ)
    return meet(record, deadline)


def run_text(arguments: "Sequence[str]" = ("--records",), launcher: str = "") -> str:
    """Shell text that runs this file as one process, or several behind a launcher such as "srun ".

    Nothing but python3 has to be there: the file itself is in the text. `records_in`, `judge` and `report` make the
    table from the output.
    """
    with open(__file__, encoding="utf-8") as source:  # noqa: PTH123
        text = shlex.quote(source.read())
    return 'tl_preflight={}\n{}python3 -c "$tl_preflight" {}\n'.format(
        text, launcher, " ".join(map(shlex.quote, arguments))
    )


def main(argv: "Sequence[str] | None" = None) -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(prog="preflight", description="Test the rendezvous; run it as every process.")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="SECONDS", help="give up after so long (%(default)g)"
    )
    parser.add_argument("--json", action="store_true", help="rank 0 prints one JSON object")
    parser.add_argument("--export-hints", action="store_true", help="print what to set when an interface is to blame")
    parser.add_argument("--records", action="store_true", help="every rank prints one line for a program to collect")
    options = parser.parse_args(argv)
    return run(os.environ, options.timeout, options.json, options.export_hints, options.records)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
