"""A script -> the commands it would run, each with the shell that reads it and the launcher that starts it.

Nothing is executed. Variables are followed where the value is certain: assigned once, outside loops. A value that
depends on a condition or a loop is unknown, and no rule speaks about what is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .shell_syntax import Document, Lines, Piece, Shell, Word, descend, normalise, source

if TYPE_CHECKING:
    from tree_sitter import Node

RANKS = frozenset({"NODE_RANK", "RANK", "LOCAL_RANK"})
PER_TASK = RANKS | {"SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"}


@dataclass(eq=False)
class Command:
    """One program start. ``launcher`` is the srun, mpirun or ssh it is started by; ``shell`` read its words."""

    words: list[Word]
    name: str
    shell: Shell
    launcher: Command | None
    scope: Scope
    offset: int
    pipes_into: Command | None = None

    @property
    def conditional(self) -> bool:
        """Inside if, case or behind && and ||: may run on some nodes only."""
        return self.scope.conditional or self.scope.loop


@dataclass(eq=False)
class Assignment:
    """``name=value``; ``prefix`` when it holds for one command only."""

    name: str
    word: Word | None
    offset: int
    source: str
    shell: Shell
    scope: Scope
    prefix: bool = False


@dataclass(eq=False)
class Reference:
    """A use of a variable as written; ``operator`` as in ``${name:-x}``."""

    name: str
    offset: int
    source: str
    operator: str
    shell: Shell
    tested: bool


@dataclass(frozen=True, eq=False)
class Value:
    """What a variable holds: words (one unless an array), or unknown (None); ``names``: variables it was made of."""

    words: tuple[Word, ...] | None = None
    names: tuple[str, ...] = ()

    @property
    def per_task(self) -> bool:
        """Made from a variable that differs between tasks."""
        return bool(PER_TASK.intersection(self.names))


UNKNOWN = Value()


@dataclass(frozen=True, eq=False)
class Scope:
    """Where the walk is. ``variables`` is shared until a subshell copies it."""

    document: Document
    shell: Shell
    launcher: Command | None = None
    variables: dict[str, Value] = field(default_factory=dict)
    arguments: tuple[Word, ...] | None = None
    conditional: bool = False
    loop: bool = False
    substitution: bool = False
    tested: bool = False
    depth: int = 0

    def copy(self, **changes: object) -> Scope:
        """A subshell: what it assigns is not seen outside."""
        return replace(self, variables=dict(self.variables), depth=self.depth + 1, **changes)  # type: ignore[arg-type]

    def deeper(self, **changes: object) -> Scope:
        """The same shell, one level further down the tree."""
        return replace(self, depth=self.depth + 1, **changes)  # type: ignore[arg-type]


@dataclass(eq=False)
class Comment:
    """A comment of the script itself; ``first`` when no command stands before it."""

    text: str
    offset: int
    before_commands: bool


class Script:
    """All that a rule can ask about one script text."""

    def __init__(self, text: str) -> None:
        self.data = normalise(text)
        self.lines = Lines(self.data)
        self.commands: list[Command] = []
        self.assignments: list[Assignment] = []
        self.references: list[Reference] = []
        self.comments: list[Comment] = []
        self.has_errors = False
        self.unread = False  # too large
        self.files: dict[str, tuple[Piece, ...]] = {}

    def assigned(self, name: str) -> list[Assignment]:
        """Every assignment to a variable."""
        return [item for item in self.assignments if item.name == name]

    def code_text(self) -> str:
        """The script without its comments."""
        data = bytearray(self.data)
        for comment in self.comments:
            length = len(comment.text.encode("utf-8", "replace"))
            data[comment.offset : comment.offset + length] = b" " * length
        return data.decode("utf-8", "replace")


def assigned_names(node: Node) -> set[str]:
    """Names that a part of the tree may set."""
    setters = ("variable_assignment", "for_statement", "postfix_expression", "binary_expression", "unary_expression")
    names: set[str] = set()
    for child in descend(node):
        if child.type in setters:
            names.update(source(item) for item in child.children if item.type == "variable_name")
            names.update(source(item.children[0]) for item in child.children if item.type == "subscript")
        elif child.type == "command" and source(child).startswith(("read", "mapfile", "let", "printf -v", "getopts")):
            names.update(source(item) for item in child.children if item.type == "word")
    return names
