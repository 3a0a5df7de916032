"""The contract in shell: the texts under shell/ and the few values that are filled into them.

The .sh files are the source, so that shellcheck reads them and people can, too. Lines `#@name@` and words `@NAME@`
in them are the places to fill.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from shlex import quote


def task_prolog(*, per_node: bool = False) -> str:
    """A task prolog for a whole cluster (TaskProlog of slurm.conf(5)): it fills in what is unset in every task.

    Args:
        per_node: with defaults of torchrun's options (`launch: per-node`).

    >>> task_prolog().splitlines()[0]
    '#!/bin/sh'
    """
    settings = {"settings": "per_node=1"} if per_node else {}
    return _fill("task_prolog.sh", lines={"functions": _source("first_host.sh"), **settings})


def slurm_block(
    num_nodes: int,
    world_size: int,
    *,
    master_addr: str = "hostname",
    master_addr_suffix: str = "",
    frozen_rank: str | None = None,
    per_node_script: str | None = None,
    keep_exit_trap: bool = False,
    with_prolog: bool = True,
) -> str:
    """The rendezvous block of a batch script, for /bin/sh or bash.

    Args:
        num_nodes: nodes of the job.
        world_size: processes of the job, used where Slurm sets no SLURM_NTASKS.
        master_addr: "hostname", or "ip" for an address instead of a name.
        master_addr_suffix: text behind the host name, such as "-ib"; letters, digits, dot, dash, underscore only.
        frozen_rank: the words of an srun command that make torchrun's node rank the same everywhere (rule MN101);
            torchrun then gets defaults under which it agrees on the ranks itself.
        per_node_script: a script to place on every node beside the task prolog, with torchrun's defaults exported.
        keep_exit_trap: an EXIT trap may exist already and must stay.
        with_prolog: place the task prolog on the nodes; False where no srun will run.
    """
    address = _source("host_address.sh") if master_addr == "ip" else ""
    call = {"address": "_tlmn_address"} if address else {}
    functions = _source("first_host.sh") + address
    prolog = _fill("task_prolog.sh", lines={"functions": functions, **call}, keep=("settings",))
    head, _, body = prolog.partition("#@settings@\n")
    lines: dict[str, str] = {}
    if per_node_script is not None:
        lines["run"] = f"_tlmn_run={quote(per_node_script)}\n"
        lines["no_place"] = "exit 1"
        no_place = "the script cannot be placed on the nodes: use launch: script, or ask for a working sbcast"
    else:
        no_place = (
            "going on without a task prolog: RANK, LOCAL_RANK and NODE_RANK are not set in the tasks; "
            "use srun shared-env exec -- CMD, or SLURM_PROCID"
        )
    if keep_exit_trap:
        lines["old_trap"] = _source("slurm_old_trap.sh")
    place = _fill(
        "slurm_place.sh",
        words={
            "PROLOG_HEAD": head.replace("'", "'\\''"),
            "PROLOG": body.replace("'", "'\\''").rstrip("\n"),
            "PER_NODE": "1" if per_node_script is not None else "",
            "NUM_NODES": num_nodes,
            "NO_PLACE": no_place,
        },
        lines=lines,
    )
    if frozen_rank is not None:
        lines = {"rdzv": _fill("slurm_rdzv.sh", words={"TRAP": _one_line(frozen_rank)})}
    return _fill(
        "slurm_block.sh",
        words={"WORLD_SIZE": world_size, "SUFFIX": master_addr_suffix},
        lines={
            "functions": functions,
            **call,
            **lines,
            "place": place if with_prolog else "",
            "unset": "unset -f _tlmn_first_host _tlmn_new" + (" _tlmn_address" if address else ""),
        },
    )


def remote_trap() -> str:
    """A bash function in front of the command of that name, for a multi-node script that is wrapped in it."""
    return _source("slurm_remote_trap.sh")


def sky_prefix(*, per_node: bool = False) -> str:
    """The text before a SkyPilot run command; ends in a newline.

    Args:
        per_node: with defaults of torchrun's options (`launch: per-node`).
    """
    return _source("sky_prefix.sh") + (_source("sky_per_node.sh") if per_node else "")


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 80 else words[:77] + "..."


@cache
def _source(name: str) -> str:
    """The text of a file under shell/, without its shellcheck directives."""
    text = (Path(__file__).parent / "shell" / name).read_text(encoding="utf-8")
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("# shellcheck"))


@cache
def _pieces(name: str) -> list[str]:
    """A file under shell/ cut at its marks: text, indent and name of a line mark, name of a word mark, text, ..."""
    return re.split(r"^([ \t]*)#@(\w+)@\n|@([A-Z_]+)@", _source(name), flags=re.MULTILINE)


def _fill(
    name: str,
    *,
    words: dict[str, object] | None = None,
    lines: dict[str, str] | None = None,
    keep: tuple[str, ...] = (),
) -> str:
    """`name` with `@NAME@` replaced by words, and each line `#@name@` by text or by nothing."""
    pieces = _pieces(name)
    out = pieces[:1]
    for indent, line, word, text in zip(pieces[1::4], pieces[2::4], pieces[3::4], pieces[4::4], strict=True):
        if word:
            out.append(str((words or {})[word]))
        elif line in keep:
            out.append(f"{indent}#@{line}@\n")
        elif filled := (lines or {}).get(line):
            out.append(f"{indent}{filled.rstrip()}\n")
        out.append(text)
    return "".join(out)
