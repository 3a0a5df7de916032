"""Hostile input, made by hypothesis from the pieces of each grammar, and every input that a longer campaign kept.

The targets and what they promise are in fuzz_targets.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz_targets import SEEDS, SEPARATOR, TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# fmt: off
PIECES: dict[str, list[str]] = {
    "hostlist": ["n", "[", "]", "1", "0", "-", ",", " ", "9" * 12, "é", "%", "-ib", "[1-3]", "[01-10,12]",
        "\udcff", "\0"],
    "task_counts": ["2", "(x", ")", "(x3)", ",", "9" * 12, "0", " ", "-1", "\u0663"],
    "flags": [
        "#SBATCH", "--nodes=", "-N", "-n", "--", "-", "=", " ", "\n", "'", '"', "\\", "#", "2", "2-4", "1k",
        "--export=",
        "ALL", "A=1", ",", "--gres=gpu:", "--comment ", ":", "hetjob", "--mem", "--exclusive", "\udcff", "\x1b", "é",
    ],
    "request": [
        "srun a", "#!/bin/sh", "#!/usr/bin/python", "\n", "\r\n", SEPARATOR, "--nodes=2", "-n4", "L4:", "8", "+",
        "16GB",
        " ", "." , "inf", "nan", "1e400", "-ib", "9" * 400, "\0", "\udcff",
    ],
    "env": ["$(touch x)", "`touch x`", "'", '"', "\\", "\n", "\r", "\r\n", "$HOME", ";", "touch x", "&", "!",
        "\udcff", "\0",
            SEPARATOR, "é", "EOF", "*"],
    "task_yaml": [
        "env", "secrets", "script", "resources", "num_nodes", "provider", "slurm", "skypilot", "accelerators",
        "cpus", "memory",
        "launch", "per-node", "file_mounts", ": ", ":", "- ", "\n", "\n  ", "\t", "|", ">", "&a ", "*a", "<<",
        "!!int ",
        "{", "}", "[", "]", ",", "'", '"', "\\", "?", "---", "#", "0", "2", "1:2", "~", "yes", "\r", "\ufeff", "é",
        "TOKEN",
    ],
    "overrides": [
        "env.", "secrets.", "resources.", "num_nodes", "accelerators", "cpus", "memory", "port", "=", "2", "[",
        "!x", "&a", "*a", ".",
        SEPARATOR, "A", "TOKEN", "\udcff", "\0", "script", "launch", "provider", "slurm", "'", "{", " ", "9" * 400,
    ],
    "script": [
        "srun", "torchrun", "--node_rank=$NODE_RANK", "bash -c ", "'", '"', "`", "$(", ")", "${", "}", "$((", "))",
        "<<EOF", "EOF",
        "\n", "\\\n", "||", "&&", "|", "&", ";", "(", "{", "if", "then", "fi", "for", "in", "do", "done", "case",
        "esac", "f()",
        "[[", "]]", "A=", "A=(", "+=", "#SBATCH --nodes=2", "eval", "$A", '"$@"', "${A[@]}", "é", " ", " ",
        SEPARATOR, "!",
        "? a : b", "\ue000", "\udcff", "export TOKEN=",
    ],
    "prefix": ["10.0.0.1", "\n", "\r", " ", "$(touch x)", "`touch x`", "'", '"', SEPARATOR, "sky-", "9" * 30, "_1",
        "é", "#", "\udcff"],
}
# fmt: on
PIECES["shell_host"] = PIECES["hostlist"] + ["$(touch x)", "`touch x`", ";touch x", "'", "*"]
STARTS_A_SHELL = ("shell_host", "env", "prefix")
KEPT = sorted(path for path in SEEDS.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_any_input_is_a_value_or_one_readable_line(name: str) -> None:
    pieces = st.lists(st.sampled_from(PIECES[name]), max_size=30).map("".join)
    data = (pieces | st.text(max_size=50)).map(
        lambda text: text.encode("utf-8", "surrogateescape" if "\udcff" in text else "replace")
    )

    # As many as take a few seconds.
    @settings(max_examples=500 if name in STARTS_A_SHELL else 2000, derandomize=True, deadline=None, database=None,
              suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
    @given(data | st.binary(max_size=60))
    def run(data: bytes) -> None:
        TARGETS[name](data)

    run()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name[:14]}")
def test_kept_input(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_target_has_kept_input() -> None:
    assert {path.parent.name for path in KEPT} == set(TARGETS)
