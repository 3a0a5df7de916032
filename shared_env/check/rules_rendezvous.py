"""Rules about the meeting point: address, port, id, and the way of meeting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .finding import Hit, rule
from .options import option
from .torchrun_trap import written

if TYPE_CHECKING:
    from .commands import Command
    from .shell_syntax import Piece, Word
    from .subject import Subject

LOOPBACK = re.compile(r"(localhost(\.localdomain)?|127\.[0-9.]+|\[?::1\]?|0\.0\.0\.0)\Z", re.IGNORECASE)
OWN_NAME = frozenset({"HOSTNAME", "HOST", "SLURMD_NODENAME"})
OWN_NAME_PROGRAMS = frozenset({"hostname", "uname", "ifconfig"})
DIFFERS = OWN_NAME | {
    "RANDOM", "SRANDOM", "$", "BASHPID", "EPOCHSECONDS", "EPOCHREALTIME", "SLURM_TASK_PID", "SLURM_PROCID",
    "SLURM_NODEID", "NODE_RANK", "RANK", "SKYPILOT_NODE_RANK",
}  # fmt: skip
DIFFERS_PROGRAMS = OWN_NAME_PROGRAMS | {"shuf", "uuidgen", "mktemp", "ss", "netstat", "lsof"}
FIRST_HOST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
OWN_VARIABLE = {"address": "MASTER_ADDR", "port": "MASTER_PORT"}
EPHEMERAL = range(32768, 61000)  # net.ipv4.ip_local_port_range of Linux


@dataclass(frozen=True)
class Setting:
    """A value given to the rendezvous: what ('address', 'port', 'id'), its word, and the text around it."""

    what: str
    word: Word
    offset: int
    text: str
    launcher: Command | None


def settings(subject: Subject) -> Iterator[Setting]:
    """Every address, port and id that the script gives, outside conditions and loops."""
    script = subject.script
    for name, what in (("MASTER_ADDR", "address"), ("MASTER_PORT", "port")):
        found = script.assigned(name)
        for given in found if len(found) == 1 else ():  # a second assignment: a default that is replaced
            if given.word is not None and not given.scope.conditional and not given.scope.loop:
                yield Setting(what, given.word, given.offset, given.source, given.scope.launcher)
    for command, start in subject.starts:
        if command.conditional:
            continue
        names = {"master_addr": "address", "main_process_ip": "address", "master_port": "port"}
        names |= {"main_process_port": "port", "rdzv_id": "id", "rdzv_endpoint": "endpoint"}
        for name, what in names.items():
            item = option(start.options, name)
            if item is None or item.value is None:
                continue
            host, port = split_endpoint(item.value)
            parts = {"address": host, "port": port} if what == "endpoint" else {what: item.value}
            for part, word in parts.items():
                # What MASTER_ADDR holds is judged where it is assigned.
                if OWN_VARIABLE.get(part, "\n") not in item.value.source:
                    yield Setting(part, word, item.word.offset, written(item), command.launcher)


def split_endpoint(word: Word) -> tuple[Word, Word]:
    """``host:port`` as two words."""
    pieces = list(word.pieces)
    for index in range(len(pieces) - 1, -1, -1):
        piece = pieces[index]
        if piece.kind == "text" and ":" in piece.text:
            at = piece.text.rindex(":")
            host = [*pieces[:index], piece.slice(0, at)]
            port = [piece.slice(at + 1, len(piece.text)), *pieces[index + 1 :]]
            return replace(word, pieces=_filled(host)), replace(word, pieces=_filled(port))
    return word, replace(word, pieces=())


def _filled(pieces: list[Piece]) -> tuple[Piece, ...]:
    return tuple(piece for piece in pieces if piece.text or piece.kind != "text")


@rule("MN106", "error", "The master address is a fixed host, the loopback, or each node's own")
def master_address(subject: Subject) -> Iterator[Hit]:
    """All processes must meet at one address that every node can reach."""
    if not subject.multi:
        return
    right = FIRST_HOST if subject.slurm else '$(echo "$SKYPILOT_NODE_IPS" | head -n1)'
    fix = f'leave it out and use "$MASTER_ADDR", which is set, or take the first host: {right}'
    address = subject.env.get("MASTER_ADDR", "")
    told = (address, "remove MASTER_ADDR from env: it is set to the first host of the job")
    found = [(0, f"MASTER_ADDR: {told[0]}", _fixed(subject, address), told[1], "env.MASTER_ADDR")]
    for item in settings(subject):
        if item.what == "address" and (item.launcher is None or subject.everywhere(item.launcher)):
            found.append((item.offset, item.text, _address_fault(subject, item.word), fix, "script"))
    for offset, text, fault, advice, key in found:
        if fault:
            severity = "warning" if "moves" in fault else ""
            yield Hit(offset, text, fault, advice, key, severity)


def _address_fault(subject: Subject, word: Word) -> str:
    text = word.literal
    if text is not None:
        return _fixed(subject, text)
    for piece in word.expansions:
        if subject.everywhere(piece.shell.launcher) and _own_name(piece):
            return "each node computes its own name here, so every node waits at a different address"
        for command in piece.commands:
            words = [item.literal or "" for item in command.words[1:]]
            if command.name in ("echo", "printf") and any(map(LOOPBACK.match, words)):
                return "when the lookup fails, every node falls back to its own loopback and waits there alone"
    return ""


def _fixed(subject: Subject, text: str) -> str:
    if LOOPBACK.match(text):
        return "the loopback address is another machine on each node, so every node waits at itself"
    nodelist = subject.job.given("nodelist")
    if not text or "$" in text or (nodelist is not None and nodelist.value is not None):
        return ""
    return f"{text} is one certain host: the job hangs as soon as the scheduler moves it to other nodes"


def _own_name(piece: Piece) -> bool:
    own = [item for item in piece.commands if item.name in OWN_NAME_PROGRAMS and not item.conditional]
    mine = any(item.launcher is piece.shell.launcher for item in own)
    return mine or (piece.kind == "variable" and piece.names[:1] != () and piece.names[0] in OWN_NAME)


@rule("MN107", "error", "A port or rendezvous id that differs between nodes")
def differs_between_nodes(subject: Subject) -> Iterator[Hit]:
    """Computed once in the batch shell a random port is fine; computed on every node it is another one each time."""
    if not subject.multi:
        return
    seeded = bool(subject.script.assigned("RANDOM"))
    for item in settings(subject):
        if item.what == "address":
            continue
        for piece in item.word.expansions:
            if subject.everywhere(piece.shell.launcher) and _differs(piece, seeded):
                right = {"port": "$MASTER_PORT", "id": "$SLURM_JOB_ID" if subject.slurm else "$SKYPILOT_TASK_ID"}
                yield Hit(
                    item.offset,
                    item.text,
                    f"this is computed on every node, each gets another {item.what}, and the nodes never meet",
                    f'use one value for all, for example "{right[item.what]}"',
                )
                break


def _differs(piece: Piece, seeded: bool) -> bool:
    names = set(piece.names) - ({"RANDOM"} if seeded else set())
    if names & DIFFERS or "/dev/urandom" in piece.text:
        return True
    for command in piece.commands:
        text = " ".join(word.text for word in command.words)
        if command.launcher is not piece.shell.launcher:
            continue
        if command.name in DIFFERS_PROGRAMS or (command.name == "date" and re.search(r"%[sNSMT]", text)):
            return True
        if command.name.startswith("python") and re.search(r"socket|random|uuid", text):
            return True
    return False


@rule("MN108", "warning", "Options of both kinds of rendezvous")
def mixed_rendezvous(subject: Subject) -> Iterator[Hit]:
    """c10d and etcd give out ranks themselves; node_rank and master_addr belong to the static way."""
    for _, start in subject.starts if subject.multi else ():
        ignored = [item for item in start.options if item.name in ("node_rank", "master_addr")]
        if start.kind == "torchrun" and start.is_dynamic and ignored:
            names = " and ".join(dict.fromkeys(item.word.text.split("=", 1)[0] for item in ignored))
            yield Hit(
                ignored[0].word.offset,
                written(ignored[0]),
                f"the dynamic rendezvous ignores {names}: rank 0 may be on any node",
                f"remove {names}, or remove the --rdzv options and keep the static way",
            )


@rule("MN114", "error", "MASTER_PORT is no usable port")
def port_range(subject: Subject) -> Iterator[Hit]:
    """A port is an integer in 1024..65535, best outside the range that the kernel gives to outgoing connections."""
    if not subject.multi:
        return
    value = subject.env.get("MASTER_PORT", "")
    if value == "auto" and subject.sky:  # the prefix derives a port from SKYPILOT_TASK_ID
        value = ""
    places = [(value, 0, f"MASTER_PORT: {value}", "env.MASTER_PORT")] if value else []
    for item in settings(subject):
        if item.what == "port" and item.word.pieces and item.word.literal is not None:
            places.append((item.word.literal, item.offset, item.text, "script"))
    for text, offset, shown, key in places:
        severity, fault = _port_fault(text)
        if fault:
            yield Hit(offset, shown, fault, "use a port between 10000 and 32767, or leave it out", key, severity)


def _port_fault(text: str) -> tuple[str, str]:
    if not (text.isascii() and text.isdigit()):
        return "error", f"{text!r} is not an integer, and every process fails when it reads the port"
    if not 1024 <= int(text[:9]) <= 65535:
        return "error", f"{text} is outside 1024..65535, and nobody can listen there"
    if int(text) in EPHEMERAL:
        return "warning", f"{text} is in the range of outgoing connections (32768-60999) and may be taken at any moment"
    return "", ""
