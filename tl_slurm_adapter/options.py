"""sbatch's option grammar: flags as people write them -> a typed list -> `#SBATCH` lines.

The Slurm API reads no `#SBATCH` line (pyslurm and slurmrestd ignore them), so options are parsed once, here, and
rendered from the list. Words follow sbatch's own reader (sbatch(1), checked with 22.05, 24.11 and 26.05), names
follow getopt_long(3).
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shared_env.credentials import is_credential, mask, readable

from .option_table import RENAMED, SHORT, SRUN_ONLY, TABLE, Spec, find_long
from .words import BLANKS, quote, split_words

PREFIX = "#SBATCH"
_COUNT = re.compile(r"\s*\+?([0-9]{1,9})", re.ASCII)
_NODES = re.compile(r"\s*\+?([0-9]{1,9})([kKmM]?)(?:-([0-9]{1,9})([kKmM]?))?", re.ASCII)
_SCALE = {"": 1, "k": 1024, "m": 1024 * 1024}


class OptionError(ValueError):
    """Flags that cannot be used. `line` counts from 1 (0: not from a text), `text` is that line or the option."""

    def __init__(self, message: str, line: int = 0, text: str = "") -> None:
        message = f"sbatch options, line {line}: {message} (in {_cut(text.strip())!r})" if line else message
        super().__init__(_cut(readable(mask(message)), 1000))
        self.line = line
        self.text = text


@dataclass(frozen=True)
class Option:
    """One option of sbatch under its long name; `line` and `text` say where it was written.

    >>> Option("comment", "two words").header()
    '#SBATCH --comment="two words"'
    """

    name: str
    value: str | None = None
    line: int = field(default=0, compare=False)
    text: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        spec = TABLE.get(self.name)
        if spec is None:
            raise self.error(f"--{self.name} is no option of sbatch")
        if spec.refused:
            raise self.error(f"--{self.name} is refused: {spec.refused}")
        if self.value is None and spec.kind == "required":
            raise self.error(f"--{self.name} needs a value; write --{self.name}=VALUE")
        if self.value is not None and spec.kind == "none":
            raise self.error(f"--{self.name} takes no value; write --{self.name} alone")
        # Cs: half a surrogate pair, which cannot be written to a script
        if any(unicodedata.category(char) in ("Cc", "Cs") for char in self.value or ""):
            raise self.error(
                f"the value of --{self.name} holds a control character: {_cut(self.value or '')!r}; remove it"
            )

    @property
    def spec(self) -> Spec:
        """The option's row in the table."""
        return TABLE[self.name]

    @property
    def flag(self) -> str:
        """The option as a person would type it, for messages."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"

    def __repr__(self) -> str:
        return f"Option({mask(self.flag)!r})"

    def without_credentials(self) -> Option:
        """The option with the names alone of the credentials in an `--export`: sbatch takes their values from its
        own environment (sbatch(1))."""
        if self.name != "export" or not self.value:
            return self
        items = (item.partition("=") for item in _export_items(self.value))
        return replace(
            self, value=",".join(name if is_credential(name) else name + is_ + text for name, is_, text in items)
        )

    def header(self) -> str:
        """The directive line, quoted so that sbatch reads back exactly `value`."""
        return f"{PREFIX} --{self.name}" + ("" if self.value is None else f"={quote(self.value)}")

    def error(self, message: str) -> OptionError:
        """An error about this option, with the place where it was written."""
        return OptionError(message, self.line, self.text)


class Directives(NamedTuple):
    """The block at the top of a script: its options, its `#!` line, and the number of lines before the body."""

    options: list[Option]
    shebang: str | None
    body_start: int


def parse_flags(text: str | None) -> list[Option]:
    """Read flags, with or without `#SBATCH`, one or several on a line, by the rules of sbatch.

    Raises OptionError, with line and text, for anything that is no option, and for options that a task must not set.

    >>> [option.flag for option in parse_flags('-N2 --ntasks 8  # all\\n#SBATCH --comment="a b"')]
    ['--nodes=2', '--ntasks=8', '--comment=a b']
    """
    options: list[Option] = []
    for number, line in enumerate((text or "").split("\n"), start=1):
        bare = line.strip(BLANKS)
        if bare.startswith(PREFIX) or not bare.startswith("#"):
            options += _parse_line(bare.removeprefix(PREFIX), number, line)
    return options


def leading_directives(script: str) -> Directives:
    """Read the `#SBATCH` lines of a script: those before the first line that is neither blank nor a comment.

    As sbatch does, only lines that begin with `#SBATCH` in the first column count. Raises OptionError.

    >>> leading_directives("#!/bin/bash -l\\n#SBATCH -n 4\\nsrun hostname\\n").body_start
    2
    """
    lines = [line.rstrip("\r") for line in script.split("\n")]
    shebang = lines[0] if lines[0].startswith("#!") else None
    options: list[Option] = []
    for index, line in enumerate(lines):
        if line.startswith(PREFIX):
            options += _parse_line(line.removeprefix(PREFIX), index + 1, line)
        elif line.strip(BLANKS) and not line.lstrip(BLANKS).startswith("#"):
            return Directives(options, shebang, index)
    return Directives(options, shebang, len(lines))


def effective(options: Sequence[Option]) -> list[Option]:
    """The options that count: the last of each name, in the order of those last ones; `--export` is merged.

    Order matters beyond the name: of --requeue and --no-requeue, too, sbatch obeys the last.

    >>> [option.flag for option in effective(parse_flags("--export=A=1 -n2 --export=ALL -n4"))]
    ['--export=ALL,A=1', '--ntasks=4']
    """
    last: dict[str, Option] = {}
    for option in options:
        earlier = last.pop(option.name, None)
        last[option.name] = _merge_exports(earlier, option) if option.name == "export" and earlier else option
    return list(last.values())


def _merge_exports(earlier: Option, later: Option) -> Option:
    """Union of two --export values: sbatch would silently drop the first.

    ALL anywhere stays, at the front; of two values for one name the later wins; NONE (and NIL) means "nothing of what
    was said before", so it clears the earlier list, and itself gives way to names that follow (a list without ALL
    already starts from an empty environment).
    """
    if (later.value or "").upper() in ("NONE", "NIL"):
        return later
    everything = False
    names: dict[str, str] = {}
    for option in (earlier, later):
        for item in _export_items(option.value or ""):
            if item.upper() == "ALL":
                everything = True
            elif item.upper() not in ("NONE", "NIL"):
                names.pop(item.partition("=")[0], None)
                names[item.partition("=")[0]] = item
    return Option("export", ",".join(["ALL"] * everything + list(names.values())), later.line, later.text)


def _export_items(value: str) -> list[str]:
    """The items of an --export; a comma inside quotes belongs to the value, as in --export='A="x,y"'."""
    return re.findall(r"""(?:"[^"]*"|'[^']*'|[^,])+""", value)


def _cut(text: str, length: int = 100) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _parse_line(flags: str, line: int, text: str) -> Iterator[Option]:
    try:
        words = deque(split_words(flags))
    except ValueError as error:
        raise OptionError(str(error), line, text) from None
    while words:
        word = words.popleft()
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            spec = _find(name, line, text)
            if spec.kind == "required" and not equals and not spec.refused:
                yield Option(spec.name, words.popleft() if words else None, line, text)
            else:
                yield Option(spec.name, value if equals else None, line, text)
        elif word.startswith("-") and word not in ("-", "--"):
            yield from _short_options(word, words, line, text)
        else:
            raise OptionError(f"{_cut(word)!r} is no option; options begin with '-', comments with '#'", line, text)


def _short_options(word: str, words: deque[str], line: int, text: str) -> Iterator[Option]:
    """The letters of one word, as getopt(3) takes them: `-Hn2` is --hold --ntasks=2."""
    rest = word[1:]
    while rest:
        letter, rest = rest[0], rest[1:]
        spec = SHORT.get(letter)
        if spec is None:
            raise OptionError(f"-{letter} is no option of sbatch; see `man sbatch`", line, text)
        value = None
        if spec.kind != "none":
            value, rest = rest or None, ""
        if spec.kind == "required" and value is None and words:
            value = words.popleft()
        yield Option(spec.name, value, line, text)


def _find(name: str, line: int, text: str) -> Spec:
    """The row of a long name or of an unambiguous beginning of one."""
    found = find_long(name)
    if len(found) == 1:
        return TABLE[found[0]]
    if found:
        names = ", ".join(f"--{candidate}" for candidate in found[:8]) + ", ..." * (len(found) > 8)
        raise OptionError(f"--{name} is ambiguous; write one of {names}", line, text)
    if name in SRUN_ONLY:
        raise OptionError(f"--{name} is an option of srun, not of sbatch; move it to the srun command", line, text)
    near = difflib.get_close_matches(name.lower().replace("_", "-"), TABLE, n=1)
    hint = RENAMED.get(name) or (f"did you mean --{near[0]}?" if near else "see `man sbatch`")
    raise OptionError(f"--{name} is no option of sbatch; {hint}", line, text)


@dataclass(frozen=True)
class TaskLayout:
    """How the flags spread tasks over nodes; None where they do not say.

    given: the flags fix a number of tasks, so no default must be put beside them.
    world_size_fallback: the number of tasks that they come to, for when Slurm sets no SLURM_NTASKS.
    """

    nodes: int
    ntasks: int | None
    ntasks_per_node: int | None
    given: bool
    world_size_fallback: int


def task_layout(options: Sequence[Option], num_nodes: int) -> TaskLayout:
    """The layout that OPTIONS give a job of NUM_NODES nodes. Raises OptionError on a count that is no number.

    A total wins over tasks per node, as in sbatch(1). --ntasks-per-socket and --ntasks-per-core alone only set a limit
    (a 22.05 job with one of them and -N2 starts one task a node), so they are no layout; --ntasks-per-gpu is one.

    >>> task_layout(parse_flags("--ntasks-per-node=4"), 2).world_size_fallback
    8
    """
    by_name = {option.name: option for option in effective(options)}
    nodes = _nodes(by_name["nodes"])[0] if "nodes" in by_name else num_nodes
    ntasks = _count(by_name.get("ntasks"))
    per_node = _count(by_name.get("ntasks-per-node"))
    per_gpu = _count(by_name.get("ntasks-per-gpu") or by_name.get("ntasks-per-tres"))
    gpus = _gpus(by_name, nodes)
    if ntasks:
        tasks = ntasks
    elif per_node:
        tasks = nodes * per_node
    else:
        tasks = per_gpu * gpus if per_gpu and gpus else nodes
    return TaskLayout(nodes, ntasks, per_node, bool(ntasks or per_node or per_gpu), tasks)


def check_num_nodes(options: Sequence[Option], num_nodes: int) -> None:
    """Raise OptionError, showing both, where OPTIONS contradict a task's num_nodes."""
    for option in effective(options):
        if option.name == "nodes" and _nodes(option) != (num_nodes, num_nodes):
            raise option.error(f"{option.flag} contradicts num_nodes: {num_nodes}; remove the flag or change num_nodes")
        if option.name == "ntasks" and (_count(option) or num_nodes) < num_nodes:
            # "can't run 1 processes on 2 nodes, setting nnodes to 1"
            raise option.error(
                f"{option.flag} contradicts num_nodes: {num_nodes}, as Slurm gives a job no more nodes than tasks; "
                f"write --ntasks={num_nodes} or more (-N counts nodes, -n counts tasks)"
            )


def _nodes(option: Option) -> tuple[int, int]:
    """Least and greatest node count of a --nodes value: 2, 2-4, 2k."""
    match = _NODES.fullmatch(option.value or "")
    if not match:
        raise option.error(f"{option.flag} does not fix a number of nodes; write it as --nodes=2")
    low, low_unit, high, high_unit = match.groups()
    least = int(low) * _SCALE[low_unit.lower()]
    return least, int(high) * _SCALE[high_unit.lower()] if high else least


def _count(option: Option | None) -> int | None:
    if option is None:
        return None
    match = _COUNT.fullmatch(option.value or "")
    if not match or not int(match[1]):
        raise option.error(f"{option.flag} is no number of tasks; write it as --{option.name}=2")
    return int(match[1])


def _gpus(by_name: dict[str, Option], nodes: int) -> int | None:
    """GPUs of the whole job, where the flags say so: --gpus=8, --gpus-per-node=a100:4, --gres=gpu:a100:4,nic:1."""
    for name, times in (("gpus", 1), ("gpus-per-node", nodes), ("gres", nodes)):
        items = (
            [item.split("(")[0].split(":") for item in (by_name[name].value or "").split(",")]
            if name in by_name
            else []
        )
        if name == "gres":
            items = [item for item in items if item[0] in ("gpu", "gres/gpu")]
        if items:
            # without a number, gpu or gpu:a100 means one
            return times * sum(int(item[-1]) if re.fullmatch(r"[0-9]{1,9}", item[-1]) else 1 for item in items)
    return None
