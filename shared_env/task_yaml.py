"""Reading task.yaml: text (or a Python mapping) becomes a tree of `Item`s that know where they were written.

Nothing is ever constructed from a tag: PyYAML only composes its node tree here, and scalars keep the spelling that
they have in the file (`08`, `1e3`, `2026-01-01`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import yaml

from shared_env.credentials import is_credential, mask, readable

# Of a file, and of all its text once aliases are expanded. Slurm itself takes no script over 4 MB (max_script_size of
# slurm.conf(5)), and PyYAML reads about 1 MB a second.
MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_ITEMS = 20_000
_TAG = "tag:yaml.org,2002:"
_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # the breaks that PyYAML counts as lines
_BLOCK_HEADER = re.compile(r"\|[-+0-9]*[ \t]*(?:#.*)?$")
_KINDS = {"merge": "str", "value": "str", "timestamp": "date"}  # `<<` and `=` are plain text where they are values


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a task: `source:line:column: path: message`; line and column count from 1.

    `path` is the dotted key (`resources.num_nodes`), `source` the file name or the `--set KEY` that gave the value;
    a part that is not known is None or "". `severity` is "error" or "warning".
    """

    path: str
    line: int | None
    column: int | None
    message: str
    severity: str = "error"
    source: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.source, self.line, self.column) if part)
        path = "" if self.source == f"--set {self.path}" else self.path
        kind = "warning" if self.severity == "warning" else ""
        parts = place, kind, path if len(path) <= 120 else path[:117] + "...", self.message
        return readable(mask(": ".join(part for part in parts if part)))  # one line, whatever the key


class TaskError(ValueError):
    """A task that cannot be used. `problems` holds all that was found, `str()` is one line for each."""

    def __init__(self, problems: Iterable[Problem]):
        self.problems = list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


@dataclass(slots=True, repr=False)
class Item:
    """One value of a task: what it is, how it was spelled and where. Places count from 1."""

    kind: str  # map, list, set, str, int, float, bool, null, date
    value: Any = None  # dict[str, Item], list[Item], or (Python input only) the scalar itself
    text: str = ""  # a scalar as written
    line: int | None = None
    column: int | None = None
    key_line: int | None = None
    key_column: int | None = None
    source: str = ""
    text_start: tuple[int, int] | None = None  # where the text itself begins, if its columns follow the file's
    literal: bool = False  # a `|` block: each of its lines is one line of the file

    def native(self) -> Any:
        """The value as plain Python data; dates and numbers that Python cannot read stay text."""
        if self.kind == "map":
            return {key: child.native() for key, child in self.value.items()}
        if self.kind in ("list", "set"):
            children = [child.native() for child in self.value]
            return children if self.kind == "list" else set(children)
        if self.value is not None or self.kind in ("str", "date", "null"):
            return None if self.kind == "null" else self.text if self.value is None else self.value
        if len(self.text) > 64 or ":" in self.text:  # YAML 1.1 reads 22:80 as a number in base 60
            return self.text
        try:
            return yaml.safe_load(self.text)
        except ValueError:
            return self.text

    def problem(self, path: str, message: str, *, at_key: bool = False, severity: str = "error") -> Problem:
        """A problem with this value, or with its key, at its place."""
        line, column = (self.key_line, self.key_column) if at_key else (self.line, self.column)
        return Problem(path, line, column, message, severity, self.source)


class _TooMuchError(yaml.MarkedYAMLError):
    """The document is valid, but larger than any task."""


class _Loader(yaml.SafeLoader):
    """Only composes, and stops before deep nesting or a flood of nodes can cost stack, memory or time."""

    def __init__(self, text: str):
        super().__init__(text)
        self.depth = self.count = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        self.count += 1
        if self.depth > MAX_DEPTH or self.count > MAX_ITEMS:
            much = f"nested more than {MAX_DEPTH} levels deep" if self.depth > MAX_DEPTH else f"over {MAX_ITEMS} values"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _TooMuchError(None, None, f"too large for a task: {much}", mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def implied_tag(self, text: str) -> str:
        """The tag that a plain scalar with this text has."""
        return str(self.resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]


class TreeBuilder:
    """Makes `Item`s from one source; `problems` collects what does not stop it."""

    def __init__(self, source: str = ""):
        self.source = source
        self.problems: list[Problem] = []
        self.lines: list[str] = []  # of the last text that was parsed
        self._items = self._size = 0

    def fail(self, message: str, mark: Any = None) -> TaskError:
        """The error for a source that cannot be read on; `mark` is PyYAML's place in it."""
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        return TaskError([Problem("", line, column, message, source=self.source)])

    def parse(self, text: str) -> Item | None:
        """The tree of one YAML document, None if it is empty. Raises TaskError where the text is no YAML."""
        self._loader: _Loader | None = None
        self._text, self.lines = text, _LINE_BREAK.split(text)
        try:
            self._loader = loader = _Loader(text)
            loader.get_event()  # type: ignore[no-untyped-call]
            if loader.check_event(yaml.StreamEndEvent):
                return None
            node = loader.compose_document()
            if not loader.check_event(yaml.StreamEndEvent):
                mark = loader.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise self.fail("a second YAML document begins here; a task is one document, remove the '---'", mark)
        except yaml.reader.ReaderError as error:
            before = _LINE_BREAK.split(text[: error.position])
            char = f"U+{ord(text[error.position]):04X}"
            message = f"the character {char} is not allowed in YAML; write it as an escape in double quotes"
            raise TaskError([Problem("", len(before), len(before[-1]) + 1, message, source=self.source)]) from None
        except yaml.MarkedYAMLError as error:
            raise self.fail(_syntax_message(error), error.problem_mark or error.context_mark) from None
        except TaskError:
            raise
        except (ValueError, OverflowError):  # PyYAML reads "\UFFFFFFFF" and "%YAML 9...9" with chr() and int()
            mark = self._loader.get_mark() if self._loader else None
            raise self.fail("not valid YAML: a number or an escape near here is out of range", mark) from None
        return self._from_node(node, (), 0) if node else None

    def from_python(self, value: object, path: tuple[str, ...] = ()) -> Item:
        """The tree of a Python value; what is no mapping, list or YAML scalar counts as its `str()`."""
        if isinstance(value, Mapping):
            self._spend(len(path), 1)
            children = {}
            for key, child in value.items():
                if isinstance(key, str):
                    children[str.__str__(key)] = self.from_python(child, (*path, str.__str__(key)))
                else:
                    message = f"the key {show(repr(key))} must be text"
                    self.problems.append(Problem(".".join(path), None, None, message))
            return Item("map", children)
        if isinstance(value, (list, tuple, set, frozenset)):
            self._spend(len(path), 1)
            kind = "set" if isinstance(value, (set, frozenset)) else "list"
            return Item(kind, [self.from_python(child, (*path, str(i))) for i, child in enumerate(value)])
        kinds = ((bool, "bool"), (int, "int"), (float, "float"), (date, "date"), (type(None), "null"))
        kind = next((kind for cls, kind in kinds if isinstance(value, cls)), "str")
        try:
            text = str.__str__(value) if isinstance(value, str) else str(value)
        except ValueError:  # int() and str() stop at 4300 digits
            text = "a number too long to print"
        self._spend(len(path), len(text))
        return Item(kind, None if kind == "str" else value, text)

    def _spend(self, depth: int, size: int) -> None:
        self._items += 1
        self._size += size
        if depth > MAX_DEPTH:
            raise self.fail(
                f"too large for a task: nested more than {MAX_DEPTH} levels deep (a value contains itself?)"
            )
        if self._items > MAX_ITEMS or self._size > MAX_BYTES:
            much = f"over {MAX_BYTES // 10**6} MB of text or {MAX_ITEMS} values, each alias counted in full"
            raise self.fail(f"too large for a task: {much}")

    def _from_node(self, node: yaml.Node, path: tuple[str, ...], depth: int) -> Item:
        self._spend(depth, len(node.value) if isinstance(node, yaml.ScalarNode) else 1)
        tag = node.tag.removeprefix(_TAG)
        item = Item(_KINDS.get(tag, tag), None, "", node.start_mark.line + 1, node.start_mark.column + 1)
        item.source = self.source
        known = False
        if isinstance(node, yaml.MappingNode):
            known, item.kind = tag in ("map", "set"), "map"
            item.value = dict(self._pairs(node, path, depth))
        elif isinstance(node, yaml.SequenceNode):
            known, item.kind = tag == "seq", "list"
            item.value = [self._from_node(child, (*path, str(i)), depth + 1) for i, child in enumerate(node.value)]
        elif isinstance(node, yaml.ScalarNode) and self._loader:
            item.text = _join_surrogates(node.value)
            known = tag == "str" or self._loader.implied_tag(node.value) == node.tag
            self._place_text(item, node)
        if not known:
            item.kind = item.kind if item.kind in ("map", "list") else "str"
            shown = "" if _is_hidden(path) else show("!!" + tag if tag != node.tag else tag) + " "
            message = f"the tag {shown}is not allowed; write the plain value, in quotes if it begins with '!'"
            self.problems.append(item.problem(".".join(path), message))
        return item

    def _pairs(self, node: yaml.MappingNode, path: tuple[str, ...], depth: int) -> Iterator[tuple[str, Item]]:
        """Key and value of a mapping: merged ones (`<<`) first, so that its own keys replace them."""
        own: dict[str, Item] = {}
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag == _TAG + "merge":
                yield from self._merged(value_node, path, depth)
                continue
            key_item = self._from_node(key_node, path, depth + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(key_item.problem(".".join(path), "a key must be a plain word"))
                continue
            item = self._from_node(value_node, (*path, key_item.text), depth + 1)
            item.key_line, item.key_column = key_item.line, key_item.column
            first = own.setdefault(key_item.text, item)
            if first is not item:
                message = f"is given twice, in line {first.key_line} and in line {item.key_line}; keep one of them"
                self.problems.append(item.problem(".".join((*path, key_item.text)), message, at_key=True))
        yield from own.items()

    def _merged(self, node: yaml.Node, path: tuple[str, ...], depth: int) -> Iterator[tuple[str, Item]]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for part in reversed(nodes):  # the first of a list wins
            item = self._from_node(part, path, depth + 1)
            if item.kind == "map":
                yield from item.value.items()
            else:
                self.problems.append(item.problem(".".join(path), "'<<' needs a mapping, for example <<: *defaults"))

    def _place_text(self, item: Item, node: yaml.ScalarNode) -> None:
        start, end = node.start_mark, node.end_mark
        if node.style == "|":
            header = start.line  # an anchor may stand on a line before the `|`
            while header < len(self.lines) - 1 and not _BLOCK_HEADER.search(self.lines[header]):
                header += 1
            for number, line in enumerate(node.value.split("\n"), header + 1):
                if line and number < len(self.lines):
                    item.text_start = header + 2, len(self.lines[number]) - len(line) + 1
                    item.literal = True
                    return
        elif start.line == end.line and node.style != ">":
            last = end.index - (node.style is not None and node.style in "'\"")
            if self._text[last - len(node.value) : last] == node.value:  # no escape in it
                item.text_start = end.line + 1, end.column + 1 - (end.index - last) - len(node.value)


def read_file(path: str) -> str:
    """The text of a task file (UTF-8, a BOM is dropped). Raises TaskError with one readable sentence."""
    builder = TreeBuilder(path)
    try:
        # A pipe that nobody writes to is at its end, instead of being waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                raise builder.fail("is a device, not a file with a task")
            data, more = b"", file.read(MAX_BYTES + 1)  # None: a pipe whose writer has not written yet
            os.set_blocking(descriptor, True)
            while more is None or more:
                data += more or b""
                more = file.read(MAX_BYTES + 1 - len(data))
    except TaskError:
        raise
    except OSError as error:
        raise builder.fail(f"cannot read this file: {error.strerror}") from error
    except ValueError as error:  # NUL or a lone surrogate in the name
        raise TaskError([Problem("", None, None, f"{show(path)} is no file name: {error}")]) from error
    if len(data) > MAX_BYTES:
        raise builder.fail(f"too large for a task: over {MAX_BYTES // 10**6} MB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 text (byte 0x{data[error.start]:02x}); save it as UTF-8"
        raise TaskError([Problem("", line, None, message, source=path)]) from None


def show(text: str, limit: int = 60) -> str:
    """Text quoted on one line and cut, for a message."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def _join_surrogates(text: str) -> str:
    r"""JSON writes characters beyond U+FFFF as two escapes ("\ud83d\ude00"); YAML reads them one by one."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _syntax_message(error: yaml.MarkedYAMLError) -> str:
    problem, context = (_without_names(text or "") for text in (error.problem, error.context))
    problem = problem or context or "cannot be read"
    if isinstance(error, _TooMuchError):
        return problem
    if "'\\t'" in problem:
        return "a tab character; YAML is indented with spaces"
    if "mapping values are not allowed" in problem:
        return "not valid YAML: a second ': ' in one line; put the value in quotes"
    return f"not valid YAML: {problem}" + (f" ({context})" if context and context != problem else "")


def _without_names(text: str) -> str:
    """PyYAML's words on one line without the words of the file that they quote: a password may begin with `*`."""
    return " ".join(re.sub(r" '[^'<\\\s][^'\s]+'(?= |$|;)", "", " ".join(text.split())).split())


def _is_hidden(path: tuple[str, ...]) -> bool:
    """Whether the value at a path is a credential."""
    return path[:1] == ("secrets",) or (len(path) > 1 and is_credential(path[1]))
