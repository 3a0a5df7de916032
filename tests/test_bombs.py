"""Files that are no task: too large, too deep, no file, no text, no YAML. Each is refused at once, with the reason."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from shared_env import TaskError, check, load_task
from shared_env.task import Task

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 2  # of processor time, the start of Python included
MEGABYTES = 400  # of address space
# Reads a file in a process that the system ends when it needs more than that.
READ = """
import resource, sys
from shared_env import TaskError, check, load_task
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]), int(sys.argv[2])))
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]), int(sys.argv[3])))
try:
    task = load_task(sys.argv[1])
except TaskError as error:
    sys.exit(str(error))
check(task.model_copy(update={"provider": "slurm", "num_nodes": 2}))
"""


def refusal(path: Path | str) -> str:
    """The one line that a bounded process says about a file; empty when it read the task."""
    limits = [str(SECONDS), str(MEGABYTES << 20)]
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), *limits], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode in (0, 1), done
    assert len(done.stderr.splitlines()) == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip()


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [lol]"] + [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(levels)]
    return "\n".join(lines) + f"\nenv: {{A: *a{levels}}}\n"


MEGABYTE = 1 << 20
BOMBS: dict[str, tuple[Callable[[], str], str]] = {
    "billion laughs": (lambda: laughs(9), "over 1 MB of text or 20000 values, each alias counted in full"),
    "laughs of text": (lambda: laughs(0) + "b: &b '" + "x" * 10_000 + "'\nc: [" + "*b," * 900 + "]\n", "each alias"),
    "50 MB string": (lambda: "name: '" + "x" * 50 * MEGABYTE + "'\n", "over 1 MB"),
    "a million keys": (lambda: "env:\n" + "".join(f"  A{n}: b\n" for n in range(1_000_000)), "over 1 MB"),
    "many small keys": (lambda: "env:\n" + "".join(f"  A{n}: b\n" for n in range(80_000)), "10000:10: too large"),
    "50 MB script": (lambda: "script: |\n" + "  srun python train.py\n" * 2_200_000, "over 1 MB"),
    "brackets": (lambda: "env: " + "[" * 100_000, "1:55: too large for a task: nested more than 50 levels deep"),
    "braces": (lambda: "env: " + "{a: " * 100_000, "nested more than 50 levels deep"),
    "indents": (lambda: "".join(" " * n + "a:\n" for n in range(1400)), "50:50: too large for a task: nested"),
    "keys in keys": (lambda: "? " * 300_000, "nested more than 50 levels deep"),
    "lists in lists": (lambda: "- " * 300_000, "nested more than 50 levels deep"),
    "merge of itself": (lambda: "env: &e\n  <<: *e\n", "nested more than 50 levels deep"),
    "merge of a merge": (lambda: "a: &a {<<: &b {<<: *a}}\nenv: *a\n", "nested more than 50 levels deep"),
    "a list in itself": (lambda: "env: &e [*e]\n", "nested more than 50 levels deep"),
    "digits": (lambda: "resources:\n  num_nodes: " + "9" * 900_000, "2:14: resources.num_nodes: must be an integer"),
    "blank": (lambda: "\n" * 900_000, "is empty"),
    "comments": (lambda: "# a\n" * 200_000, "is empty"),
    "nul": (lambda: "name: a\0b\n", "1:8: the character U+0000 is not allowed in YAML"),
    "tab": (lambda: "env:\n\tA: b\n", "2:1: a tab character; YAML is indented with spaces"),
    "twice": (lambda: "name: a\nname: b\n", "2:1: name: is given twice, in line 1 and in line 2"),
    "object": (
        lambda: "name: !!python/name:os.system ''\n",
        "1:7: name: the tag '!!python/name:os.system' is not allowed",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    text, words = BOMBS[name]
    (tmp_path / "task.yaml").write_text(text())
    found = refusal(tmp_path / "task.yaml")
    assert words in found
    assert len(found) < 400
    assert found.startswith(str(tmp_path / "task.yaml"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1" + "0" * 30, "'1000000000000000000000000000000'"), ("1" + "0" * 30, ""), ("1_000", "1_000"),
        ("0x10", "0x10"), (".inf", ".inf"), (".nan", ".nan"), ("1e3", "1e3"), ("0o7", "0o7"), ("-1", "-1"),
        ("2:30", "2:30"), ("2026-01-01", "'2026-01-01'"), ("true", "the boolean true"), ("[2]", "a list"),
    ],
)  # fmt: skip
def test_numbers_of_nodes_that_are_none(tmp_path: Path, value: str, shown: str) -> None:
    (tmp_path / "task.yaml").write_text(f"resources:\n  num_nodes: {value}\n")
    with pytest.raises(TaskError) as caught:
        load_task(tmp_path / "task.yaml")
    start = f"{tmp_path}/task.yaml:2:14: resources.num_nodes: must be an integer >= 1, not "
    assert str(caught.value).startswith(start)
    assert shown.strip("'") in str(caught.value)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


TASK = "name: é\nscript: |\n  srun a\n  srun b\n"
ENCODINGS: dict[str, tuple[bytes, str]] = {
    "utf-8": (TASK.encode(), ""),
    "a byte order mark": (TASK.encode("utf-8-sig"), ""),
    "windows line ends": (TASK.replace("\n", "\r\n").encode(), ""),
    "utf-16": (TASK.encode("utf-16"), "task.yaml:1: is not UTF-8 text (byte 0xff); save it as UTF-8"),
    "latin-1": (b"setup: a\n" + TASK.encode("latin-1"), "task.yaml:2: is not UTF-8 text (byte 0xe9); save it as UTF-8"),
    "utf-16 without a mark": ("name: x\n".encode("utf-16-le"), "1:2: the character U+0000 is not allowed in YAML"),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_encodings_are_read_right_or_refused(tmp_path: Path, name: str) -> None:
    data, words = ENCODINGS[name]
    path = write(tmp_path / "task.yaml", data)
    if words:
        with pytest.raises(TaskError) as caught:
            load_task(path)
        assert words in str(caught.value)
    else:
        task = load_task(path)
        assert (task.name, task.script) == ("é", "srun a\nsrun b\n")


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe").endswith("pipe: is empty; a task has keys such as name:, resources:, script:")
    assert refusal(tmp_path).endswith("cannot read this file: Is a directory")
    assert refusal("/dev/zero") == "/dev/zero: is a device, not a file with a task"
    assert refusal("/dev/urandom") == "/dev/urandom: is a device, not a file with a task"
    assert refusal(tmp_path / "nothing").endswith("cannot read this file: No such file or directory")


def test_a_pipe_with_a_writer_is_read_to_its_end(tmp_path: Path) -> None:
    """`cat task.yaml | ... /dev/stdin` and `<(...)`, also when the writer is slow and writes more than a pipe holds."""
    script = "srun true # " + "x" * 90 + "\n"
    writer = f"import time; time.sleep(.3); print('script: |'); print(end={'  ' + script!r} * 2000)"
    reader = "import sys; from shared_env import load_task; print(len(load_task('/dev/stdin').script))"
    with subprocess.Popen([sys.executable, "-c", writer], stdout=subprocess.PIPE) as process:
        done = subprocess.run(
            [sys.executable, "-c", reader], stdin=process.stdout, capture_output=True, text=True, cwd=ROOT
        )
    assert done.stdout == f"{len(script) * 2000}\n", done.stderr


def test_a_finding_reads_no_file_again(tmp_path: Path) -> None:
    """A pipe can be read once; and a comment that silences a rule is still seen."""
    text = "resources: {provider: slurm, num_nodes: 2}\nenv:\n  MASTER_PORT: '80'\nscript: srun a\n"
    path = write(tmp_path / "task.yaml", text.encode())
    task = load_task(path)
    path.unlink()
    os.mkfifo(path)
    assert [finding.code for finding in check(task)] == ["MN114"]
    silenced = write(tmp_path / "silenced.yaml", text.replace("'80'", "'80'  # multinode: ignore MN114").encode())
    assert check(load_task(silenced)) == []


SCRIPTS = {
    "arithmetic": "echo $((" + "1+" * 200_000 + "1))",
    "and": "a && " * 150_000 + "a",
    "pipes": "a | " * 150_000 + "a",
    "defaults": "echo " + "${a:-" * 3_000 + "}" * 3_000,
    "here-docs": "cat <<EOF " * 30_000,
    "loops": "for i in a; do " * 30_000 + "done;" * 30_000,
    "words": "a b " * 200_000,
    "substitutions": "$(" * 300_000,
    "quotes": "\"$(echo \"" * 30_000,
    "negations": "[[ " + "! " * 200_000 + "a ]]",
    "functions": "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(20_000)) + "f0",
    "doubling": "x=a\n" + 'x="$x$x"\n' * 30_000 + "eval $x",
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_linter_reads_no_bomb(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    task = load_task({"resources": {"provider": "slurm", "num_nodes": 2}, "script": SCRIPTS[name]})
    assert isinstance(task, Task)
    check(task)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 10  # it was more than 100, or had no end


def test_no_character_ends_the_process() -> None:
    """Whether the parser's reading outside of a table is noticed depends on where that lies: every second time."""
    code = """
from shared_env import check, load_task
for text in ("{%c", "{1%c", "{..%c", "{1..2%c}", "a={%c", "echo {1..%c}", "for i in {%c..3}; do :; done"):
    check(load_task({"resources": {"provider": "slurm", "num_nodes": 2}, "script": text % 0x10FFFF}))
"""
    runs = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(16)]
    assert [run.wait() for run in runs] == [0] * 16


@pytest.mark.parametrize("script", ["true; " * 50_000, "cat << A\n" * 1_001 + "A\n"], ids=["long", "here documents"])
def test_what_the_linter_did_not_read_is_said(tmp_path: Path, script: str) -> None:
    task = {"resources": {"provider": "slurm", "num_nodes": 2}, "run": script + "torchrun train.py\n"}
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(task))
    run = subprocess.run([sys.executable, "-m", "shared_env.cli", "check", path], capture_output=True, text=True)
    assert f"{path}: the script is too large to be checked\n" in run.stderr
    assert run.returncode == 0
