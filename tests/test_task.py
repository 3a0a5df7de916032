"""task.yaml: tables of text -> task or error with its place, and properties over arbitrary input."""

from __future__ import annotations

import json
import os
import pickle
import re
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shared_env.task import Problem, Task, TaskError, load_task

CASES = Path(__file__).parent / "cases"
QUOTING = [record for record in yaml.safe_load((CASES / "quoting.yaml").read_text()) if "env" in record]
CHECK = yaml.safe_load((CASES / "check.yaml").read_text())
SLURM = """\
name: train-multinode-slurm
description: '2-node distributed PyTorch run on SLURM'

resources:
  provider: SLURM
  num_nodes: 2

env:
  # Optional override
  MASTER_PORT: '23456'

script: |
  set -euo pipefail

  srun python -m torch.distributed.run \\
    --nnodes="${SLURM_NNODES}" \\
    train.py
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load YAML text (or bytes) as a file `task.yaml` in the current directory."""
    monkeypatch.chdir(tmp_path)

    def load(text, **kwargs):
        Path("task.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_task("task.yaml", **kwargs)

    return load


def errors(load, text, **kwargs):
    with pytest.raises(TaskError) as caught:
        load(text, **kwargs)
    assert len(str(caught.value).split("\n")) == len(caught.value.problems)
    return str(caught.value)


def test_the_specification_s_form(load):
    task = load(SLURM)
    assert (task.name, task.provider, task.num_nodes, task.launch) == ("train-multinode-slurm", "slurm", 2, "script")
    assert task.env == {"MASTER_PORT": "23456"}
    assert task.script.startswith("set -euo pipefail\n\nsrun python")
    assert (task.source, task.warnings, task.setup, task.secrets, task.extra) == ("task.yaml", (), None, {}, {})


def test_transformer_lab_s_spellings_give_the_same_task(load):
    other = SLURM.replace("provider:", "compute_provider:").replace("env:", "envs:").replace("script:", "run:")
    assert load(other).model_dump() == load(SLURM).model_dump()


VALUES = [
    ("name: 2026-01-01", "name", "2026-01-01"),
    ("name:", "name", None),
    ("{}", "num_nodes", 1),
    ("resources:", "num_nodes", 1),
    ("resources: {num_nodes: 3}", "num_nodes", 3),
    ("resources: {num_nodes: '2'}", "num_nodes", 2),
    ("resources: {provider: SkyPilot}", "provider", "skypilot"),
    ("resources: {provider:}", "provider", None),
    ("resources: {accelerators: L4}", "accelerators", "L4:1"),
    ("resources: {accelerators: 'L4:2'}", "accelerators", "L4:2"),
    ("resources:\n  accelerators: L4:02", "accelerators", "L4:2"),
    ("resources: {accelerators: {L4: 2}}", "accelerators", "L4:2"),
    ("resources: {accelerators: {A100-80GB: '8'}}", "accelerators", "A100-80GB:8"),
    ("resources: {accelerators: {'L4:2'}}", "accelerators", "L4:2"),
    ("resources: {accelerators: 'L4:0.5'}", "accelerators", "L4:0.5"),
    ("resources: {accelerators: [A100:8, L4:2]}", "accelerators", ["A100:8", "L4:2"]),
    ("resources: {accelerators: {A100: 8, L4: 2}}", "accelerators", {"A100": 8, "L4": 2}),
    ("resources: {accelerators: {'A100:8', 'L4:2'}}", "accelerators", {"A100:8": None, "L4:2": None}),
    ("resources: {cpus: 8}", "cpus", "8"),
    ("resources: {cpus: 8+}", "cpus", "8+"),
    ("resources: {cpus: 0.5}", "cpus", "0.5"),
    ("resources: {memory: 16GB}", "memory", "16GB"),
    ("resources: {memory: 1e3}", "memory", "1e3"),
    (
        "resources: {use_spot: yes, disk_size: 100, ports: 22:80, when: 2026-01-01, any_of: [{region: x}, ~, 1.5]}",
        "extra",
        {
            **{"use_spot": True, "disk_size": 100, "ports": "22:80", "when": "2026-01-01"},
            "any_of": [{"region": "x"}, None, 1.5],
        },
    ),
    ("resources: {odd: 2026-13-45, bits: 0b_}", "extra", {"odd": "2026-13-45", "bits": "0b_"}),
    ("resources: {huge: " + "9" * 70 + "}", "extra", {"huge": "9" * 70}),
    ("env:", "env", {}),
    ("env: {A: 08, B: 1e3, C: 0x10, D: 1_000, E: 2026-01-01, F: 1.50, G: .inf}", "env",
     {"A": "08", "B": "1e3", "C": "0x10", "D": "1_000", "E": "2026-01-01", "F": "1.50", "G": ".inf"}),
    ("env: {A: '', B: 'yes', C: \"null\", D: =, E: <<, F: 12:30:45, G: y}", "env",
     {"A": "", "B": "yes", "C": "null", "D": "=", "E": "<<", "F": "12:30:45", "G": "y"}),
    ("env: {NO: '1', on: x, _: y, null: z}", "env", {"NO": "1", "on": "x", "_": "y", "null": "z"}),
    ('env: {A: "\\ud83d\\ude00 \\x41"}', "env", {"A": "\U0001f600 A"}),
    ("env: {A: !!str yes, B: ! 7}", "env", {"A": "yes", "B": "7"}),
    ("d: &d {A: 1, B: 2}\nenv: {<<: *d, B: 3}", "env", {"A": "1", "B": "3"}),
    ("a: &a {A: 1}\nb: &b {A: 2, B: 2}\nenv: {<<: [*a, *b], C: 3}", "env", {"A": "1", "B": "2", "C": "3"}),
    ("script:", "script", None),
    ("script: ''", "script", ""),
    ("launch: per-node", "launch", "per-node"),
    ("file_mounts: {/d/a.b: s3://x, /c: {source: y}}", "file_mounts", {"/d/a.b": "s3://x", "/c": {"source": "y"}}),
    ("file_mounts: true", "file_mounts", True),
    ("workdir: ~/code", "workdir", "~/code"),
    ("workdir: {url: x, ref: y}", "workdir", {"url": "x", "ref": "y"}),
    ("\ufeffname: bom", "name", "bom"),
    ("---\nname: marked\n...\n", "name", "marked"),
    (SLURM.replace("\n", "\r\n"), "script", yaml.safe_load(SLURM)["script"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "field", "value"), VALUES)
def test_value(load, text, field, value):
    result = getattr(load(text), field)
    assert result == value
    assert type(result) is type(value)


NUM_NODES = [("0", "0"), ("-1", "-1"), ("two", "'two'"), ("2.5", "2.5"), ("true", "the boolean true"), ("", "empty"),
             ("010", "010"), ("1_0", "1_0"), ("0x2", "0x2"), ("1:30", "1:30"), ("[2]", "a list"), ("' 2'", "' 2'"),
             ("9999999999", "9999999999"), ("2026-01-01", "'2026-01-01'")]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), NUM_NODES)
def test_num_nodes_error_has_its_place(load, text, shown):
    message = errors(load, f"name: x\n\n# two nodes\n\nresources:\n  num_nodes: {text}\n")
    column = 14 if text else 13
    assert message == f"task.yaml:6:{column}: resources.num_nodes: must be an integer >= 1, not {shown}"


BAD = [
    ("", "task.yaml: is empty; a task has"),
    ("# only a comment\n", "task.yaml: is empty; a task has"),
    ("---\n", "task.yaml: must be a mapping with keys such as name:, resources:, script:, not empty"),
    ("- a\n", "task.yaml: must be a mapping with keys such as name:, resources:, script:, not a list"),
    ("just text", "task.yaml: must be a mapping with keys such as name:, resources:, script:, not text"),
    ("name: a\n---\nname: b\n", "task.yaml:2:1: a second YAML document begins here"),
    ("name: a: b\n", "task.yaml:1:8: not valid YAML: a second ': ' in one line; put the value in quotes"),
    ("name: [a\n", "task.yaml:2:1: not valid YAML: expected ',' or ']'"),
    ("env:\n\tA: 1\n", "task.yaml:2:1: a tab character; YAML is indented with spaces"),
    ("name: *nowhere\n", "task.yaml:1:7: not valid YAML: found undefined alias"),
    ("name: a\nenv: {A: \x07}\n", "task.yaml:2:10: the character U+0007 is not allowed in YAML"),
    ('name: "\\UFFFFFFFF"\n', "task.yaml:1:10: not valid YAML: a number or an escape"),
    (b"name: ok\ndescription: caf\xe9\n", "task.yaml:2: is not UTF-8 text (byte 0xe9); save it as UTF-8"),
    ("name: x".encode("utf-16"), "task.yaml:1: is not UTF-8 text (byte 0xff)"),
    ("? [a]\n: b\n", "task.yaml:1:3: a key must be a plain word"),
    ("name: a\nname: b\n", "task.yaml:2:1: name: is given twice, in line 1 and in line 2; keep one of them"),
    ("env:\n  A: 1\n  A: 1\n", "task.yaml:3:3: env.A: is given twice, in line 2 and in line 3"),
    ("env: {A: 1}\n\nenvs: {B: 1}\n", "task.yaml:3:1: env: is given twice, as env: in line 1 and as envs: in line 3"),
    ("run: a\nscript: b\n", "task.yaml:2:1: script: is given twice, as run: in line 1 and as script: in line 2"),
    ("resources:\n  provider: a\n  compute_provider: a\n",
     "task.yaml:3:3: resources.provider: is given twice, as provider: in line 2 and as compute_provider: in line 3"),
    ("num_nodes: 4\n", "task.yaml:1:1: num_nodes: is not read here: put it under resources: (resources.num_nodes)"),
    ("accelerators: L4\n", "task.yaml:1:1: accelerators: is not read here: put it under resources:"),
    ("compute_provider: x\n", "task.yaml:1:1: compute_provider: is not read here: put it under resources:"),
    ("resources: 3\n", "task.yaml:1:12: resources: must be a mapping with keys such as provider:, num_nodes:, not"),
    ("name: yes\n", "task.yaml:1:7: name: yes is a boolean in YAML; quote it: 'yes'"),
    ('name: "a\\nb"\n', "task.yaml:1:7: name: must be one line without control characters"),
    ("launch: everywhere\n", "task.yaml:1:9: launch: must be 'script' or 'per-node', not 'everywhere'"),
    ("script: [a, b]\n", "task.yaml:1:9: script: must be text, not a list"),
    ('script: "a\\0b"\n', "task.yaml:1:9: script: holds a NUL character"),
    ("resources: {cpus: many}\n", "task.yaml:1:19: resources.cpus: must be an amount such as 8, '8+' or '16GB'"),
    ("resources: {memory: true}\n", "task.yaml:1:21: resources.memory: true is a boolean in YAML"),
    ("resources: {accelerators: 2}\n", "task.yaml:1:27: resources.accelerators: must be NAME or NAME:COUNT"),
    ("resources: {accelerators: 'L4:0'}\n", "task.yaml:1:27: resources.accelerators: must be NAME or NAME:COUNT"),
    ("resources: {accelerators: 'gpu:a100:4'}\n", "task.yaml:1:27: resources.accelerators: must be NAME or NAME:COUNT"),
    ("resources: {accelerators: {L4: [1]}}\n", "task.yaml:1:27: resources.accelerators: must be NAME or NAME:COUNT"),
    ("file_mounts: a\n", "task.yaml:1:14: file_mounts: must be a mapping (/path/on/node: source"),
    ("env: text\n", "task.yaml:1:6: env: must be a mapping (NAME: value, one a line), not text"),
    ("env: [A=1, B=2]\n", "task.yaml:1:6: env: must be a mapping (NAME: value, one a line), not a list"),
    ("env: {A: }\n", "env.A: has no value; write '' for an empty text"),
    ("env: {A: ~}\n", "task.yaml:1:10: env.A: has no value"),
    ("env: {A: [1]}\n", "task.yaml:1:10: env.A: must be text, not a list"),
    ("env: {A: {B: 1}}\n", "task.yaml:1:10: env.A: must be text, not a mapping"),
    ("env: {my-key: 1}\n", "task.yaml:1:7: env.my-key: 'my-key' is no variable name"),
    ('"\\x1b[31m\\u2028": 1\nname: []', r"task.yaml:1:1: warning: \x1b[31m\u2028: unknown key, ignored"),
    ("k" * 300 + ": 1\nname: []", "task.yaml:1:1: warning: " + "k" * 117 + "...: unknown key, ignored"),
    ("env: {1A: 1}\n", "task.yaml:1:7: env.1A: '1A' is no variable name"),
    ("env: {'': 1}\n", "'' is no variable name"),
    ("env: {é: 1}\n", "'é' is no variable name"),
    ('env: {"A\\n": 1}\n', r"'A\n' is no variable name"),
    ('env: {A: "a\\0b"}\n', "task.yaml:1:10: env.A: holds a NUL character"),
    ('env: {A: "\\ud83d"}\n', "task.yaml:1:10: env.A: holds half of a surrogate pair"),
    ("env: {<<: 3}\n", "task.yaml:1:11: env: '<<' needs a mapping"),
    ("secrets: {TOKEN: [hunter2]}\n", "task.yaml:1:18: secrets.TOKEN: must be text, not a list"),
    ("env: {A: !!int x}\n", "task.yaml:1:10: env.A: the tag '!!int' is not allowed; write the plain value"),
    ("name: !mine x\n", "task.yaml:1:7: name: the tag '!mine' is not allowed"),
    ("env: !!omap [A: 1]\n", "task.yaml:1:6: env: the tag '!!omap' is not allowed"),
    ("env: {A: &a [*a]}\n", "task.yaml: too large for a task: nested more than 50 levels deep"),
    ("env: &a {<<: *a}\n", "task.yaml: too large for a task: nested more than 50 levels deep"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_text_is_one_problem_with_its_place(load, text, message):
    found = errors(load, text)
    assert message in found
    assert "\n" not in found or "tag" in found or "warning" in found  # a value behind a bad tag may be wrong as well


@pytest.mark.parametrize("word", ["true", "True", "yes", "no", "on", "off", "No", "FALSE"])
def test_boolean_in_env_says_to_quote_it(load, word):
    assert errors(load, f"env:\n  A: {word}\n") == (
        f"task.yaml:2:6: env.A: {word} is a boolean in YAML; quote it: '{word}'"
    )


def test_all_problems_in_one_go_in_the_order_of_the_file(load):
    found = errors(
        load,
        "name: [a]\nseript: x\nnum_nodes: 2\nresources: {num_nodes: 0}\nenv: {A: no, B-C: 1}\n",
        overrides=["resources.cpus=x"],
    )
    assert [re.match(r"(\S+):", line)[1] for line in found.split("\n")[:-1]] == [
        "task.yaml:1:7", "task.yaml:2:1", "task.yaml:3:1", "task.yaml:4:24", "task.yaml:5:10", "task.yaml:5:14",
    ]  # fmt: skip
    assert found.split("\n")[1] == "task.yaml:2:1: warning: seript: unknown key, ignored; did you mean script?"
    assert found.split("\n")[-1].startswith("--set resources.cpus: must be an amount")


WARNINGS = [
    ("scirpt: x", "scirpt", "did you mean script?"),
    ("nodes: 2", "nodes", "did you mean num_nodes under resources:?"),
    ("Env: {}", "Env", "did you mean env?"),
    ("zzzzzz: 1", "zzzzzz", "unknown key, ignored"),
    ("resources: {num_node: 2}", "resources.num_node", "did you mean num_nodes?"),
]


@pytest.mark.parametrize(("text", "path", "message"), WARNINGS)
def test_unknown_key_is_a_warning(load, text, path, message):
    [problem] = load(text).warnings
    assert (problem.path, problem.severity, problem.line) == (path, "warning", 1)
    assert problem.message.endswith(message)


def test_other_known_keys_do_not_warn(load):
    keys = ("git_repo", "github_repo_url", "github_directory", "parameters", "sweeps", "minutes_requested")
    assert load("".join(f"{key}: 1\n" for key in keys)).warnings == ()
    assert load("resources: {accelerator_args: {}, region: x, disk_size: 1}").warnings == ()


def test_file_that_cannot_be_read(tmp_path):
    for path, text in [
        (tmp_path / "none.yaml", f"{tmp_path}/none.yaml: cannot read this file: No such file or directory"),
        (tmp_path, f"{tmp_path}: cannot read this file: Is a directory"),
        ("a\0b", r"'a\x00b' is no file name"),
        ("name: x\nscript: y\n", r"name: x\nscript: y\n: cannot read this file: No such file"),
    ]:
        with pytest.raises(TaskError) as caught:
            load_task(path)
        [problem] = caught.value.problems
        assert str(problem).startswith(text)


def test_file_name_that_is_not_utf8(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.yaml"
    Path(os.fsdecode(path)).write_text("launch: x\n")
    with pytest.raises(TaskError, match=r"/caf\\udce9.yaml:1:9: launch"):
        load_task(Path(os.fsdecode(path)))
    Path(os.fsdecode(path)).write_text("name: x\n")
    assert os.fsencode(load_task(path).source) == path


def test_reads_what_is_no_regular_file(tmp_path):
    reader, writer = os.pipe()
    with os.fdopen(reader):
        os.write(writer, b"name: piped\n")
        os.close(writer)
        assert load_task(f"/dev/fd/{reader}").name == "piped"
    with pytest.raises(TaskError, match="is a device"):
        load_task("/dev/zero")


TOO_LARGE = {
    "brackets": "a: " + "[" * 400_000,
    "dashes": "- " * 400_000,
    "braces": "{a: " * 200_000,
    "values": "a: [" + "1," * 400_000 + "]",
    "bytes": "#" * 1_000_001,
    "laughs": "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "text aliases": "name: &a '" + "x" * 600_000 + "'\nenv: {A: *a}\n",
}


@pytest.mark.parametrize("text", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_too_large(load, text):
    assert "too large for a task" in errors(load, text)


def test_too_deep_python_value():
    value: dict[str, object] = {}
    value["resources"] = value
    with pytest.raises(TaskError, match="contains itself"):
        load_task(value)


def test_python_tags_run_nothing(load, tmp_path):
    made = tmp_path / "made"
    for tag in ("apply:os.system", "object/apply:os.system", "new:os.system", "name:os.system"):
        assert "is not allowed" in errors(load, f"name: !!python/{tag} ['touch {made}']\n")
        assert "is not allowed" in errors(load, f"env: {{? !!python/{tag} ['touch {made}'] : 1}}\n")
    assert not made.exists()


# --- Python mappings


def test_mapping_takes_python_values():
    class Name(str):
        __slots__ = ()

        def __str__(self):
            return "no"

    task = load_task(
        {
            "name": Name("x"),
            "resources": {"num_nodes": 2, "cpus": 4, "accelerators": {"A100:8", "L4:2"}, "use_spot": True},
            "env": {"I": 8, "F": 1e3, "D": date(2026, 1, 1), "P": Path("/a b")},
            "script": None,
        }
    )
    assert (task.name, task.num_nodes, task.cpus, task.script, task.source) == ("x", 2, "4", None, None)
    assert type(task.name) is str
    assert task.accelerators == {"A100:8", "L4:2"}
    assert task.extra == {"use_spot": True}
    assert task.env == {"I": "8", "F": "1000.0", "D": "2026-01-01", "P": "/a b"}
    assert task.line_of("env.I") is None


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"resources": {"num_nodes": True}}, "resources.num_nodes: must be an integer >= 1, not the boolean True"),
        ({"resources": {"num_nodes": 2.0}}, "resources.num_nodes: must be an integer >= 1, not 2.0"),
        ({"env": {"A": True}}, "env.A: True is a boolean in YAML; quote it: 'True'"),
        ({"env": {"A": None}}, "env.A: has no value; write '' for an empty text, or remove the line"),
        ({"env": {False: "1"}}, "env: the key 'False' must be text"),
        ({"env": {"A": "\udc80"}},
         "env.A: holds half of a surrogate pair, which is no character; write the character itself"),
        ({"env": {}, "envs": {}}, "env: is given twice, as env: and as envs:; keep one of them"),
        ({"num_nodes": 2}, "num_nodes: is not read here: put it under resources: (resources.num_nodes)"),
    ],
)  # fmt: skip
def test_mapping_errors(mapping, message):
    with pytest.raises(TaskError) as caught:
        load_task(mapping)
    assert str(caught.value) == message


@pytest.mark.parametrize("record", QUOTING, ids=lambda record: record["id"])
def test_hostile_env_values_survive(load, record):
    if record.get("error"):
        with pytest.raises(TaskError, match=re.escape(record["mentions"])):
            load_task({"env": record["env"]})
        assert record["mentions"] in errors(load, yaml.safe_dump({"env": record["env"]}))
        return
    assert load_task({"env": record["env"]}).env == record["value"]
    assert load(yaml.safe_dump({"env": record["env"]})).env == record["value"]
    assert load(json.dumps({"env": record["env"]})).env == record["value"]
    assert load_task({}, overrides=[f"{key}={value}" for key, value in record["env"].items()]).env == record["value"]


@pytest.mark.parametrize("record", CHECK, ids=lambda record: record["id"])
def test_tasks_of_the_linter_s_table_load_both_ways(load, record):
    from_file = load(yaml.safe_dump(record["task"], sort_keys=False))
    assert {**from_file.model_dump(), "source": None} == load_task(record["task"]).model_dump()
    assert from_file.warnings == ()


# --- what a Task is


def test_task_is_frozen_and_hides_secrets(load):
    task = load("name: x\nsecrets: {TOKEN: hunter2}\n")
    assert task.secrets == {"TOKEN": "hunter2"}
    assert "hunter2" not in repr(task) + str(task) + f"{task!r:>10}"
    with pytest.raises(ValueError, match="frozen"):
        task.name = "y"
    assert pickle.loads(pickle.dumps(task)) == task == load("name: x\nsecrets: {TOKEN: hunter2}\n")


def test_no_error_shows_a_secret(load):
    text = 'secrets: {A: [hunter2], B-C: hunter2, D: {x: hunter2}, E: !x hunter2, F: "hunter2\\0"}\n'
    assert "hunter2" not in errors(load, text, overrides=["secrets.X-Y=hunter2", "A-B=hunter2", "name.x=hunter2"])
    with pytest.raises(ValueError, match="NUL") as caught:
        Task(secrets={"A": "hunter2\0"})
    assert "hunter2" not in str(caught.value)


def test_error_carries_its_problems(load):
    with pytest.raises(TaskError) as caught:
        load("launch: x\n")
    expected = Problem("launch", 1, 9, "must be 'script' or 'per-node', not 'x'", "error", "task.yaml")
    assert caught.value.problems == pickle.loads(pickle.dumps(caught.value)).problems == [expected]


# --- places


def test_places(load):
    task = load(SLURM)
    assert task.line_of("resources.num_nodes") == 6
    assert task.line_of("env.MASTER_PORT") == 10
    assert task.place_of("env.MASTER_PORT") == (10, 17)
    assert task.place_of("resources") == (5, 3)
    assert task.place_of("script") == (13, 3)
    assert task.place_of("script", 3, 6) == (15, 8)
    assert task.place_of("run", 3) == (15, 3)
    for unknown in ("setup", "env.X", "resources.cpus", "name.x", "", "a.b.c"):
        assert task.place_of(unknown) is None
    assert load(SLURM, overrides=["env.MASTER_PORT=1"]).line_of("env.MASTER_PORT") is None


BLOCKS = {
    "plain": "script: echo $RANK\n",
    "single quotes": "script: 'echo $RANK'\n",
    "double quotes": 'script: "echo $RANK"\n',
    "strip": "# x\nscript: |-\n      echo $RANK",
    "leading blank lines": "script: |\n\n   \n    echo $RANK\n",
    "explicit indent": "script: |2\n    echo $RANK\n  echo\n",
    "comment": "script: | # the command\n  echo $RANK\n",
    "crlf": "name: x\r\nscript: |\r\n\r\n  echo $RANK\r\n",
    "anchor": "script: &s |\n  echo $RANK\n",
    "anchor before": "script: &s\n  |\n  echo $RANK\n",
    "anchor, one line": "script: &s !!str echo $RANK\n",
    "alias": "description: &s |\n  echo $RANK\nscript: *s\n",
    "key on its own line": "script:\n  |\n    echo $RANK\n",
    "complex key": "? script\n: |\n  true\n  echo $RANK\n",
    "flow": "{name: x, script: 'echo $RANK'}\n",
    "bom": "\ufeffscript: é $RANK\n",
}


@pytest.mark.parametrize("text", BLOCKS.values(), ids=BLOCKS.keys())
def test_place_in_script_is_the_place_in_the_file(load, text):
    task = load(text)
    number, line = next((i, line) for i, line in enumerate(task.script.split("\n"), 1) if "$RANK" in line)
    row, column = task.place_of("script", number, line.index("$RANK") + 1)
    assert text.removeprefix("\ufeff").splitlines()[row - 1][column - 1 :].startswith("$RANK")


@pytest.mark.parametrize(
    "text", ["script: >\n  echo\n  $RANK\n", "script: 'it''s\n  $RANK'\n", 'script: "\\x41 $RANK"\n']
)
def test_place_in_folded_text_is_where_it_starts(load, text):
    assert load(text).place_of("script", 1, 6) == (1, 9)


lines = st.lists(st.text("ab#|:'\"$é\t \u3042", max_size=8), min_size=1, max_size=6)


@given(lines, st.integers(1, 9), st.sampled_from(["", "-", "+"]))
def test_every_line_of_a_block_has_its_place(tmp_path_factory, lines, indent, chomp):
    text = f"name: x\nscript: |{indent}{chomp}\n" + "".join(" " * indent + line + "\n" for line in lines)
    path = tmp_path_factory.getbasetemp() / "block.yaml"
    path.write_text(text)
    task = load_task(path)
    for number, line in enumerate(task.script.removesuffix("\n").split("\n"), 1):
        if line:
            row, column = task.place_of("script", number)
            assert text.split("\n")[row - 1][column - 1 :] == line


# --- --set

SETS = [
    (["resources.num_nodes=4"], {"num_nodes": 4}),
    (["resources.num_nodes=4", "resources.num_nodes=5"], {"num_nodes": 5}),
    (["env.LR=0.1", "B=yes", "C="], {"env": {"A": "1", "LR": "0.1", "B": "yes", "C": ""}}),
    (["A=a=b # c", "B=[1"], {"env": {"A": "a=b # c", "B": "[1"}}),
    (["A=2"], {"env": {"A": "2"}}),
    (["envs.A=3"], {"env": {"A": "3"}}),
    (["secrets.TOKEN=x"], {"secrets": {"TOKEN": "x"}}),
    (["name=yes"], {"name": "yes"}),
    (["run=echo 'a': b"], {"script": "echo 'a': b"}),
    (["resources.compute_provider=SLURM"], {"provider": "slurm"}),
    (["resources.accelerators=L4:2"], {"accelerators": "L4:2"}),
    (["resources.cpus=8+", "resources.memory='16'"], {"cpus": "8+", "memory": "16"}),
    (["resources.cpus="], {"cpus": None}),
    (["resources.use_spot=true", "resources.labels.team=a"], {"extra": {"use_spot": True, "labels": {"team": "a"}}}),
    (["file_mounts./d/a.b=s3://x"], {"file_mounts": {"/d/a.b": "s3://x"}}),
    ("name=one text", {"name": "one text"}),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "expected"), SETS)
def test_set(load, overrides, expected):
    task = load("env: {A: 1}\nresources: {num_nodes: 2, cpus: 1}\n", overrides=overrides)
    assert {key: getattr(task, key) for key in expected} == expected


BAD_SETS = [
    ("resources.num_nodes=0", "--set resources.num_nodes: must be an integer >= 1, not 0"),
    ("resources.num_nodes=", "--set resources.num_nodes: must be an integer >= 1, not empty"),
    ("num_nodes=4", "--set num_nodes: belongs under resources: write --set resources.num_nodes=..."),
    ("compute_provider=x", "--set compute_provider: belongs under resources:"),
    ("my-key=1", "--set my-key: env.my-key: 'my-key' is no variable name"),
    ("env.A.B=1", "--set env.A.B: 'A.B' is no variable name"),
    ("env=1", "--set env: must be a mapping"),
    ("resources=1", "--set resources: must be a mapping"),
    ("resurces.num_nodes=1", "--set resurces.num_nodes: a task has no key 'resurces' to set; did you mean resources?"),
    ("parameters=1", "--set parameters: a task has no key 'parameters' to set"),
    ("resources.accelerators=[A, B]", "--set resources.accelerators: must be one value, not a list"),
    ("resources.x=[", "--set resources.x:1:2: not valid YAML"),
    ("resources.x=!!python/name:os.system", "--set resources.x:1:1: the tag"),
    ("resources.num_nodes.x=1", "--set resources.num_nodes.x: resources.num_nodes is text, so nothing can be set"),
    ("LR", "--set 'LR': write --set KEY=VALUE"),
    ("=1", "--set '': write --set KEY=VALUE"),
    ("env.=1", "--set 'env.': write --set KEY=VALUE"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "message"), BAD_SETS)
def test_bad_set_names_the_argument(load, override, message):
    found = errors(load, "resources: {num_nodes: 2}\n", overrides=[override])
    assert found.startswith(message)
    assert "\n" not in found


# --- any input at all

name = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
value = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
# fmt: off
YAML_PARTS = [
    "env", "script", "resources", "num_nodes", ": ", ":", "- ", "\n", "\n  ", "\t", "|", "|2", ">", "&a ", "*a", "<<",
    "!!int ", "!x ",
    "!!python/name:os.system ", "{", "}", "[", "]", ",", "'", '"', "\\", "\\u", "\\UFFFFFFFF", "?", "%",
    "%YAML 1.1", "---", "...", "#", "0", "1:2", "2026-13-01", "0x_",
    "~", "yes", "\r", "\x85", "\u2028", "\ufeff", "é", "a",
]
# fmt: on
relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@relaxed
@given(st.dictionaries(name, value, max_size=4))
def test_any_text_in_env_comes_back(load, env):
    assert load_task({"env": env}).env == env
    assert load(yaml.safe_dump({"env": env})).env == env
    text = yaml.safe_dump({"env": env}, allow_unicode=True, default_style="'")
    assert load(text).env == yaml.safe_load(text)["env"]  # a bare U+0085 is a line break in YAML 1.1


@relaxed
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b'"\\UFFFFFFFF": 1')
def test_any_bytes_load_or_raise_task_error(load, data):
    load_or_explain(load, data)


@settings(relaxed, max_examples=400)
@given(st.lists(st.sampled_from(YAML_PARTS), max_size=24).map("".join), st.sampled_from(["", "env: ", "resources: "]))
@example("%YAML 1." + "9" * 5000 + "\n--- a", "")
def test_anything_like_yaml_loads_or_raises_task_error(load, text, before):
    load_or_explain(load, (before + text).encode())


def load_or_explain(load, data):
    try:
        task = load(data)
    except TaskError as error:
        assert error.problems
        assert len(str(error).splitlines()) == len(error.problems)
        assert all(problem.message for problem in error.problems)
    else:
        assert isinstance(task, Task)
        assert all(isinstance(text, str) and "\0" not in text for text in task.env.values())


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3)
keys = st.sampled_from(["name", "env", "resources", "num_nodes", "accelerators", "script", "run", "secrets"]) | scalars
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


@example({"resources": {"\ud800": 1}, "env": {"\ud800": 1}, "\ud800": 1}, ["\ud800=1"])
@given(st.dictionaries(keys, trees, max_size=5), st.lists(st.text(max_size=12) | st.sampled_from(["A=1", "env.B=2"])))
def test_any_mapping_loads_or_raises_task_error(mapping, overrides):
    load_or_explain(lambda value: load_task(value, overrides=overrides), mapping)
