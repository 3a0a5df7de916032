"""The commands, the Python and the tasks of README.md do what they say, on the real cluster."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from cluster import Cluster
from slurm_jobs import EXAMPLES, PYTHON

from shared_env import load_task

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", TEXT, re.S | re.M)
    return [re.sub(rf"(?m)^{indent}", "", text) for indent, text in found]


@pytest.fixture(scope="module")
def fresh(request: pytest.FixtureRequest):
    """A cluster whose first job is job 1, as in the text, and a directory with the task of the text."""
    request.getfixturevalue("_cluster_possible")
    with Cluster() as cluster:
        (cluster.scratch / "task.yaml").write_text(blocks("yaml")[0])
        shutil.copy(EXAMPLES / "train.py", cluster.scratch)
        yield cluster


def test_commands(fresh) -> None:
    path = f"{Path(PYTHON).parent}:/usr/local/bin:/usr/bin:/bin"
    outputs = []
    for block in blocks("bash"):
        for command in block.strip().splitlines():
            done = fresh.run("bash", "-c", command, env={"PATH": path}, timeout=100)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            outputs.append(done.stdout)
    text = "\n".join(outputs)
    assert text.count("sum 3") == 4  # --follow, and later logs
    assert "rank 1 of 2 meets at" in text
    assert text.count("WORLD_SIZE   2") == 2
    assert "would start at" in text


def test_python(fresh) -> None:
    (program,) = blocks("python")
    done = fresh.run(PYTHON, "-c", program, env={"PATH": f"{Path(PYTHON).parent}:/usr/bin:/bin"}, timeout=100)
    assert re.fullmatch(r"\d+ succeeded\n", done.stdout), done.stdout + done.stderr


def test_tasks() -> None:
    for text in blocks("yaml"):
        assert load_task(yaml.safe_load(text)).num_nodes == 2


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)$", TEXT, re.M):
        assert f"\n{target}:" in makefile
    assert "exec make test\n" in (ROOT / ".ci" / "run").read_text()


def test_links() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / link).exists(), link


def test_every_promise_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    file = ""
    named = re.findall(r"`(?:([\w/]+\.py))?(?:::(test_\w+)(\*)?)?`", text)
    assert len(named) > 40
    for path, test, more in named:
        file = path or file
        source = (ROOT / "tests" / file).read_text()
        if test:
            assert re.search(rf"^def {test}{'' if more else '[(]'}", source, re.M), f"{file}::{test}"
