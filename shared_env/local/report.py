"""How `shared-env try` tells the end of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from . import NodeResult, Result

_HEAD = ("node", "address", "ranks", "exit", "seconds")


def as_json(result: Result) -> dict[str, Any]:
    """The result as plain data."""
    return asdict(result)


def as_table(result: Result) -> str:
    """One line a node, and one that says how it ended.

    >>> print(as_table(Result("slurm", [NodeResult("node1", "127.0.0.1", [0, 1], 3, 1.5, "failed")], "failure", 3, 2)))
    node   address    ranks  exit      seconds
    node1  127.0.0.1  0-1    3 failed  1.5
    node1 failed with exit status 3
    """
    rows = [_HEAD, *(_row(node) for node in result.nodes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, _summary(result)])


def _row(node: NodeResult) -> tuple[str, ...]:
    ranks = str(node.ranks[0]) if len(node.ranks) == 1 else f"{node.ranks[0]}-{node.ranks[-1]}"
    if node.exit_status is None:
        return node.node, node.address, "-", "not started", ""
    word = "" if node.state == "done" else f" {node.state}"
    return node.node, node.address, ranks, f"{node.exit_status}{word}", f"{node.seconds:.1f}"


def _summary(result: Result) -> str:
    if result.ended_by == "timeout":
        return f"stopped after {result.seconds:.0f} s (--timeout)"
    if result.ended_by == "signal":
        return "interrupted; nothing was left running"
    if result.exit_status:
        failed = [node.node for node in result.nodes if node.exit_status == result.exit_status]
        return f"{failed[0] if failed else 'the batch script'} failed with exit status {result.exit_status}"
    ran = sum(node.state == "done" for node in result.nodes)
    return f"all well: {ran} of {len(result.nodes)} nodes ran as on {result.provider}, {result.seconds:.1f} s"
