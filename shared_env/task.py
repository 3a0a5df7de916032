"""`Task`: one task.yaml, validated, with the place of everything in it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from os import PathLike, fsdecode
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from shared_env.credentials import credentials_in, mask, shown_env
from shared_env.task_yaml import Item, Problem, TaskError, TreeBuilder, read_file, show

__all__ = ["Problem", "Task", "TaskError", "load_task"]

# fmt: off
TOP_KEYS = (
    "name", "description", "resources", "env", "secrets", "setup", "script", "launch", "file_mounts", "workdir",
)
# fmt: on
RESOURCE_KEYS = ("provider", "accelerators", "cpus", "memory", "num_nodes")
# The spellings of Transformer Lab's own parser.
SPELLINGS = {"envs": "env", "run": "script"}
RESOURCE_SPELLINGS = {"compute_provider": "provider"}
MISPLACED = frozenset({*RESOURCE_KEYS, *RESOURCE_SPELLINGS})  # at the top level, where SkyPilot has num_nodes
TEXT_KEYS = frozenset({"name", "description", "setup", "script", "launch", "workdir", "env", "secrets"})
NAME_KEYS = frozenset({"env", "secrets", "file_mounts"})  # a dot below these is part of the name

# Other keys of Transformer Lab: they say nothing about how a task is launched.
OTHER_KEYS = frozenset(
    f"{host}{key}" for host in ("git_repo", "github_repo") for key in ("", "_url", "_dir", "_directory", "_branch")
) | {"github_directory", "github_dir", "github_branch", "parameters", "sweeps", "run_sweeps", "sweep_config"}
OTHER_KEYS |= {"sweep_metric", "lower_is_better", "minutes_requested"}
OTHER_RESOURCE_KEYS = frozenset({"accelerator_args"})  # SkyPilot's; looks like a misspelt `accelerators`


def _item(value: object) -> Item:
    return value if isinstance(value, Item) else TreeBuilder().from_python(value)


def _is_text(item: Item) -> bool:
    return item.kind in ("str", "int", "float", "date")


def _kind(item: Item) -> str:
    """What a value of the wrong kind is, for a message; no text of it, which may be a secret."""
    kinds = {"map": "a mapping", "list": "a list", "set": "a set", "null": "empty", "bool": f"the boolean {item.text}"}
    return kinds.get(item.kind, "text")


def _text(item: Item) -> str:
    if item.kind == "bool":
        raise ValueError(f"{item.text} is a boolean in YAML; quote it: '{item.text}'")
    if item.kind == "null":
        raise ValueError("has no value; write '' for an empty text, or remove the line")
    if not _is_text(item):
        raise ValueError(f"must be text, not {_kind(item)}; put it in quotes")
    if "\0" in item.text:
        raise ValueError("holds a NUL character, which no environment or script can carry; remove it")
    if any("\ud800" <= char <= "\udfff" for char in item.text):
        raise ValueError("holds half of a surrogate pair, which is no character; write the character itself")
    return item.text


def _line_of_text(item: Item) -> str:
    text = _text(item)
    if re.search(r"[\x00-\x1f\x7f-\x9f]", text):
        raise ValueError("must be one line without control characters")
    return text


def _env_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            f"{show(name.partition('=')[0])} is no variable name; use letters, digits and _ only, not a digit first"
        )
    return name


def _mapping(item: Item) -> dict[str, Item]:
    if item.kind != "map":
        raise ValueError(f"must be a mapping (NAME: value, one a line), not {_kind(item)}")
    return dict(item.value)


def _num_nodes(item: Item) -> int:
    if item.kind in ("str", "int") and re.fullmatch("[1-9][0-9]{0,8}", item.text):
        return int(item.text)
    value = item.text if item.kind in ("int", "float") else show(item.text) if _is_text(item) else _kind(item)
    raise ValueError(f"must be an integer >= 1, not {value if len(value) < 64 else show(value)}")


def _amount(item: Item) -> str:
    """`cpus` and `memory`: the text is kept ('8+', '16GB'), each system reads it by its own rules."""
    text = _line_of_text(item).strip()
    if len(text) > 64 or not re.match("[0-9.]", text):
        raise ValueError(f"must be an amount such as 8, '8+' or '16GB', not {show(text)}")
    return text


def _accelerators(item: Item) -> Any:
    """'L4', 'L4:2', {'L4': 2} become 'L4:2'; SkyPilot's choices (lists, sets, several names) stay as they are."""
    if item.kind == "map" and len(item.value) == 1:
        [(name, count)] = item.value.items()
        item = Item("str", text=name if count.kind == "null" else f"{name}:{count.text or _kind(count)}")
    elif item.kind in ("map", "list", "set"):
        return item.native()
    text = _text(item).strip()
    match = len(text) <= 200 and re.fullmatch(
        r"([A-Za-z][^:\x00-\x1f]*?)\s*(?::\s*0*([1-9][0-9]{0,5}|[0-9]{1,6}\.[0-9]{1,6}))?", text
    )
    if not match:
        raise ValueError(f"must be NAME or NAME:COUNT, for example 'L4:2', not {show(item.text)}")
    return f"{match[1]}:{match[2] or 1}"


def _launch(item: Item) -> str:
    if item.text not in ("script", "per-node"):
        raise ValueError(f"must be 'script' or 'per-node', not {show(item.text) if item.text else _kind(item)}")
    return item.text


def _mounts(item: Item) -> Any:
    if item.kind not in ("map", "bool"):  # Transformer Lab has `file_mounts: true`
        raise ValueError(f"must be a mapping (/path/on/node: source, one a line), not {_kind(item)}")
    return item.native()


def _workdir(item: Item) -> Any:
    return item.native() if item.kind == "map" else _line_of_text(item)  # SkyPilot has {url: ..., ref: ...}


def _reads(function: Callable[[Item], Any]) -> BeforeValidator:
    return BeforeValidator(lambda value: function(_item(value)))


_Text = Annotated[str, _reads(_text)] | None
_Amount = Annotated[str, _reads(_amount)] | None
_Env = Annotated[
    dict[Annotated[str, BeforeValidator(_env_name)], Annotated[str, _reads(_text)]],
    _reads(_mapping),
]


class Task(BaseModel):
    """A validated task, as `load_task` makes it. `repr()` and `str()` show no credentials of `env` and `secrets`.

    `accelerators` is 'NAME:COUNT', or what SkyPilot reads as a choice (list, set, mapping) just as it was given;
    `cpus` and `memory` keep their text ('8+', '16GB'); `extra` holds every other key of `resources`;
    `launch` is 'script' or 'per-node'; `source` is the file name, None for a mapping.

    >>> task = load_task({"resources": {"num_nodes": 2, "accelerators": "L4"}, "env": {"LR": 0.1}, "script": "srun x"})
    >>> task.num_nodes, task.accelerators, task.env
    (2, 'L4:1', {'LR': '0.1'})
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, _reads(_line_of_text)] | None = None
    description: _Text = None
    provider: Annotated[str, _reads(lambda item: _line_of_text(item).strip().lower())] | None = None
    num_nodes: Annotated[int, _reads(_num_nodes)] = 1
    accelerators: Annotated[Any, _reads(_accelerators)] = None
    cpus: _Amount = None
    memory: _Amount = None
    extra: Annotated[dict[str, Any], _reads(Item.native)] = {}
    env: _Env = {}
    secrets: _Env = Field(default={}, repr=False)
    setup: _Text = None
    script: _Text = None
    launch: Annotated[str, _reads(_launch)] = "script"
    file_mounts: Annotated[Any, _reads(_mounts)] = None
    workdir: Annotated[Any, _reads(_workdir)] = None
    source: str | None = None
    warnings: tuple[Problem, ...] = ()
    _root: Item = PrivateAttr(default_factory=lambda: Item("map", {}))
    _lines: list[str] = PrivateAttr(default_factory=list)  # of the file

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, shown_env(value) if name == "env" else mask(value) if isinstance(value, str) else value

    @property
    def credentials(self) -> dict[str, str]:
        """What must not be shown: `secrets`, and the variables of `env` that have the name of a credential."""
        return {name: self.env[name] for name in credentials_in(self.env)} | self.secrets

    def line_text(self, line: int) -> str:
        """A line of the file, counted from 1; empty for a task made from a mapping."""
        return self._lines[line - 1] if 0 < line <= len(self._lines) else ""

    def line_of(self, path: str, line: int = 1) -> int | None:
        """The line of the file that holds line `line` of the value at `path`; see `place_of`."""
        place = self.place_of(path, line)
        return place and place[0]

    def place_of(self, path: str, line: int = 1, column: int = 1) -> tuple[int, int] | None:
        """Line and column in the file (from 1) of a place in the text at a dotted path: ("script", 3, 1).

        Exact inside a `|` block and for text on one line; else the place where the value starts. None if the
        file does not have this key, which is so for `--set` and for a task made from a mapping.
        """
        item = _find(self._root, _split(path))
        if item is None or item.line is None or item.column is None:
            return None
        if item.text_start and (item.literal or line == 1):
            first, indent = item.text_start
            return first + line - 1, indent + column - 1
        return item.line, item.column


def load_task(path_or_mapping: str | PathLike[str] | Mapping[str, Any], *, overrides: Iterable[str] = ()) -> Task:
    """The task in a YAML file, or in a mapping with the same keys.

    `overrides` are the `KEY=VALUE` texts of a command line's `--set`, applied in order: KEY is a dotted path
    ("resources.num_nodes=4", "env.LR=0.1"), a bare KEY that is no key of a task sets an environment variable
    ("LR=0.1"). VALUE is plain text for texts and variables, a YAML scalar elsewhere.

    Raises TaskError with every problem found, each with its place. What is only doubtful is in `Task.warnings`.
    """
    if isinstance(path_or_mapping, Mapping):
        builder = TreeBuilder()
        root: Item | None = builder.from_python(path_or_mapping)
    else:
        builder = TreeBuilder(fsdecode(path_or_mapping))
        root = builder.parse(read_file(builder.source))
    if root is None:
        raise builder.fail("is empty; a task has keys such as name:, resources:, script:")
    if root.kind != "map":
        raise builder.fail(f"must be a mapping with keys such as name:, resources:, script:, not {_kind(root)}")
    problems = builder.problems
    problems.extend(_one_spelling(root, SPELLINGS))
    resources = root.value.setdefault("resources", Item("map", {}))
    if resources.kind == "map":
        problems.extend(_one_spelling(resources, RESOURCE_SPELLINGS, "resources."))
    for argument in [overrides] if isinstance(overrides, str) else overrides:
        problems.extend(_override(root, argument))
    problems.extend(_unknown_keys(root))
    values = _values(root, problems)
    try:
        task = Task.model_validate(values)
    except ValidationError as error:
        problems.extend(_from_pydantic(root, error))
    problems.sort(key=lambda problem: (problem.source != builder.source, problem.line or 0, problem.column or 0))
    if any(problem.severity == "error" for problem in problems):
        raise TaskError(problems)
    task = task.model_copy(update={"source": builder.source or None, "warnings": tuple(problems)})
    task._root, task._lines = root, builder.lines
    return task


def _one_spelling(item: Item, spellings: Mapping[str, str], prefix: str = "") -> Iterable[Problem]:
    """Rename the keys of a mapping to their canonical spelling; two spellings of one key are a problem."""
    result: dict[str, Item] = {}
    written: dict[str, str] = {}
    for key, child in item.value.items():
        known = spellings.get(key, key)
        first = result.setdefault(known, child)
        if first is child:
            written[known] = f"{key}:" + (f" in line {child.key_line}" if child.key_line else "")
            continue
        here = f"{key}:" + (f" in line {child.key_line}" if child.key_line else "")
        message = f"is given twice, as {written[known]} and as {here}; keep one of them"
        yield child.problem(prefix + known, message, at_key=True)
    item.value = result


def _override(root: Item, argument: str) -> Iterable[Problem]:
    """Apply one KEY=VALUE to the tree."""
    key, equals, text = argument.partition("=")
    first, *rest = path = _split(key)
    builder = TreeBuilder(f"--set {key}")
    item = Item("str", text=text, source=builder.source)
    if not equals or not all(path):
        message = "write --set KEY=VALUE, for example --set resources.num_nodes=2 or --set LR=0.1"
        return [Problem("", None, None, message, source=f"--set {show(argument.partition('=')[0])}")]
    if not rest and key in MISPLACED:
        return [item.problem("", f"belongs under resources: write --set resources.{first}=...")]
    if not rest and first not in TOP_KEYS and first not in OTHER_KEYS:
        first, path = "env", ["env", key]
    if first not in TOP_KEYS:
        return [item.problem("", f"a task has no key {show(first)} to set{_nearest(first)}")]
    if first not in TEXT_KEYS:
        value = builder.parse(text) or Item("null")
        if value.kind in ("map", "list"):
            return [item.problem("", f"must be one value, not {_kind(value)}; write that into the file")]
        item = Item(value.kind, None, value.text, source=builder.source)
    node = root
    for number, part in enumerate(path[:-1], 1):
        child = node.value.get(part)
        if child is None or child.kind == "null":
            child = node.value[part] = Item("map", {}, source=builder.source)
        if child.kind != "map":
            return [item.problem("", f"{'.'.join(path[:number])} is {_kind(child)}, so nothing can be set below it")]
        node = child
    node.value[path[-1]] = item
    return builder.problems


def _unknown_keys(root: Item) -> Iterable[Problem]:
    for key, item in root.value.items():
        if key in MISPLACED:
            message = f"is not read here: put it under resources: (resources.{key})"
            yield item.problem(key, message, at_key=True)
        elif key not in TOP_KEYS and key not in OTHER_KEYS:
            yield item.problem(key, f"unknown key, ignored{_nearest(key)}", at_key=True, severity="warning")
    resources = root.value["resources"]
    for key, item in resources.value.items() if resources.kind == "map" else ():
        near = difflib.get_close_matches(key.lower(), RESOURCE_KEYS, 1, 0.8)
        if near and key not in RESOURCE_KEYS and key not in OTHER_RESOURCE_KEYS:
            message = f"unknown key, passed on as it is; did you mean {near[0]}?"
            yield item.problem(f"resources.{key}", message, at_key=True, severity="warning")


def _nearest(key: str) -> str:
    choices = [*TOP_KEYS, *SPELLINGS, *sorted(MISPLACED)]
    near = next(iter(difflib.get_close_matches(key.lower()[:60], choices, 1, 0.6)), "")
    place = " under resources:" if near in MISPLACED else ""
    return f"; did you mean {near}{place}?" if near else ""


def _values(root: Item, problems: list[Problem]) -> dict[str, Any]:
    """The fields of `Task`. A key without a value counts as left out, except num_nodes."""
    resources = root.value["resources"]
    if resources.kind not in ("map", "null"):
        message = f"must be a mapping with keys such as provider:, num_nodes:, not {_kind(resources)}"
        problems.append(resources.problem("resources", message))
    below = resources.value if resources.kind == "map" else {}
    found = {key: root.value.get(key) for key in TOP_KEYS if key != "resources"}
    found |= {key: below.get(key) for key in RESOURCE_KEYS}
    values: dict[str, Any] = {
        key: item for key, item in found.items() if item and (item.kind != "null" or key == "num_nodes")
    }
    values["extra"] = Item("map", {key: item for key, item in below.items() if key not in RESOURCE_KEYS})
    return values


def _from_pydantic(root: Item, error: ValidationError) -> Iterable[Problem]:
    for one in error.errors():
        at_key = len(one["loc"]) == 3 and one["loc"][2] == "[key]"
        path = [str(part) for part in (one["loc"][:2] if at_key else one["loc"])]
        if path[0] in RESOURCE_KEYS:
            path.insert(0, "resources")
        item = _find(root, path) or Item("null")
        yield item.problem(".".join(path), str(one.get("ctx", {}).get("error", one["msg"])), at_key=at_key)


def _split(path: str) -> list[str]:
    first, *rest = path.split(".", 1)
    first = SPELLINGS.get(first, first)
    if rest and first not in NAME_KEYS:
        rest = rest[0].split(".")
    if first == "resources":
        rest[:1] = [RESOURCE_SPELLINGS.get(part, part) for part in rest[:1]]
    return [first, *rest]


def _find(root: Item, path: list[str]) -> Item | None:
    item: Item | None = root
    for part in path:
        if item is None or item.kind not in ("map", "list"):
            return None
        if item.kind == "map":
            item = item.value.get(part)
        else:
            item = item.value[int(part)] if part.isdecimal() and int(part) < len(item.value) else None
    return item
