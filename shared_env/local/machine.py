"""What this machine gives to nodes that it only plays: addresses, devices, free ports."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

LOOPBACK = "127.0.0.1"


class TryError(RuntimeError):
    """The task cannot be run on this machine; the message says what to type instead."""


@dataclass(frozen=True)
class Node:
    """One node: its number from 0, its address, the devices it sees ("0,1"), and the ranks that belong to it."""

    index: int
    address: str
    devices: str
    ranks: range

    @property
    def name(self) -> str:
        """The name in messages; nodes count from 1 there."""
        return f"node{self.index + 1}"


def make_nodes(count: int, gpus: int, environ: Mapping[str, str]) -> list[Node]:
    """`count` nodes with `gpus` devices each; where the system has only one loopback address, they share it.

    Linux has the whole of 127.0.0.0/8 (ip(7)); other systems have 127.0.0.1 unless more were configured.

    >>> [(node.name, node.devices, list(node.ranks)) for node in make_nodes(2, 2, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"})]
    [('node1', '4,5', [0, 1]), ('node2', '6,7', [2, 3])]
    """
    addresses = [str(IPv4Address(LOOPBACK) + index) for index in range(count)]
    if not all(map(_is_ours, addresses)):
        addresses = [LOOPBACK] * count
    devices = _devices(count, gpus, environ)
    width = max(1, gpus)
    return [Node(i, addresses[i], devices[i], range(i * width, (i + 1) * width)) for i in range(count)]


def why_not_free(port: int) -> str:
    """Why nothing can listen on a port of this machine, in the system's words; empty when it is free."""
    both = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as probe:
        # As torch's store does: what is only left of an earlier connection does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(("", port))
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return ""


def _is_ours(address: str) -> bool:
    with socket.socket(socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _devices(count: int, gpus: int, environ: Mapping[str, str]) -> list[str]:
    """The devices of each node: a share of the real ones, or 0, 1, ... on every node when there are too few."""
    given = environ.get("CUDA_VISIBLE_DEVICES", "")
    real = given.split(",") if given else sorted(_numbers(), key=int)
    if len(real) < count * gpus:
        return [",".join(map(str, range(gpus)))] * count
    return [",".join(real[i * gpus : (i + 1) * gpus]) for i in range(count)]


def _numbers() -> list[str]:
    return [path.name[6:] for path in Path("/dev").glob("nvidia[0-9]*")]
