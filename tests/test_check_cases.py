"""The linter against recorded mistakes, against correct scripts, and against its own pages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from shared_env import load_task
from shared_env.check import RULES, check, explain, rules_document

HERE = Path(__file__).parent
CASES = yaml.safe_load((HERE / "cases" / "check.yaml").read_text())
CORPUS = sorted((HERE / "corpus").glob("*.yaml"))
EXAMPLE = re.compile(r"(Wrong|Right):.*?```yaml\n(.*?)```", re.DOTALL)


def codes(task, **kwargs):
    return {finding.code for finding in check(load_task(task), **kwargs)}


@pytest.mark.parametrize("record", CASES, ids=lambda record: record["id"])
def test_case(record):
    found = codes(record["task"])
    assert set(record["codes"]) <= found, record["why"]
    assert not (found if "*" in record["absent"] else found & set(record["absent"])), record["why"]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_correct_script(path):
    task = load_task(path)
    assert not task.warnings
    for text in (task.setup, task.script):
        subprocess.run(["bash", "-n"], input=text or "", text=True, check=True)
    assert check(task) == []


def test_the_corpus_is_large_and_mixed():
    tasks = [load_task(path) for path in CORPUS]
    assert len(tasks) >= 40
    assert {(task.provider, task.launch) for task in tasks} >= {
        ("slurm", "script"),
        ("slurm", "per-node"),
        ("skypilot", "script"),
        ("skypilot", "per-node"),
    }


def test_every_rule_is_in_the_table():
    assert sorted(RULES) == [f"MN{number}" for number in range(101, 125)]
    assert {rule.severity for rule in RULES.values()} == {"error", "warning"}


@pytest.mark.parametrize("code", sorted(RULES))
def test_page(code):
    """The wrong example draws the code, the right one draws nothing at all."""
    examples = EXAMPLE.findall(explain(code))
    assert [kind for kind, _ in examples] == ["Wrong", "Right"]
    wrong, right = (yaml.safe_load(text) for _, text in examples)
    assert code in codes(wrong)
    assert codes(right) == set()


def test_explain_knows_its_codes():
    assert explain(" mn103 ").startswith("# MN103: ")
    with pytest.raises(ValueError, match="MN101 to MN124"):
        explain("MN999")


def test_the_document_is_up_to_date():
    assert (HERE.parent / "docs" / "rules.md").read_text() == rules_document()
