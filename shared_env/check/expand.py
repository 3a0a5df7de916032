"""A word node of the tree -> words, with the variables put in whose value is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .commands import UNKNOWN, Reference, Scope, Script, Value
from .shell_syntax import (
    EXPANSIONS,
    FIRST_HOLE,
    LAST_HOLE,
    Piece,
    Shell,
    Word,
    ansi_c_piece,
    names_in,
    source,
    text_piece,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tree_sitter import Node

    from .commands import Command

BREAK = "break"  # a piece that stands for the boundary between two words of an array
KEEPS_VALUE = ("", ":-", "-", ":=", "=", ":?", "?")
IN_DOUBLE_QUOTES = '$`"\\\n'
MAX_DEPTH = 60
MAX_PIECES, MAX_TEXT = 1000, 100_000


class Expander:
    """Builds words; ``walk`` is called for the commands inside a substitution and returns them."""

    def __init__(self, script: Script, walk: Callable[[Node, Scope], tuple[Command, ...]]) -> None:
        self.script = script
        self.walk = walk

    def words(self, node: Node, scope: Scope) -> list[Word]:
        """The words that one word node becomes: none, one, or many after an unquoted variable or an array."""
        start, end = scope.document.place(node.start_byte), scope.document.place(node.end_byte)
        groups = split(list(self.pieces(node, scope)))
        found = []
        for group in groups:
            offset, text = group[0].offset, "".join(piece.text for piece in group)
            if len(groups) == 1 and start <= offset <= end:
                offset, text = start, written(node, scope)
            found.append(Word(tuple(group), offset, text))
        return found

    def word(self, node: Node, scope: Scope) -> Word:
        """The node as one word: the right side of an assignment is not split."""
        pieces = tuple(piece for piece in self.pieces(node, scope) if piece.kind != BREAK)
        return Word(pieces, scope.document.place(node.start_byte), written(node, scope))

    def array(self, node: Node, scope: Scope) -> Value:
        """The value of ``(a b c)``."""
        words = [word for child in node.named_children for word in self.words(child, scope)]
        return value_of(words)

    def pieces(self, node: Node, scope: Scope, quoted: bool = False) -> Iterator[Piece]:
        """The pieces of one node."""
        if scope.depth > MAX_DEPTH:
            yield Piece("variable", source(node), scope.document.place(node.start_byte), scope.shell, quoted)
        elif node.type == "raw_string":
            yield from self._text(node.start_byte + 1, source(node)[1:-1], scope, "", True)
        elif node.type == "ansi_c_string":
            yield ansi_c_piece(scope.document, scope.shell, node)
        elif node.type in ("string", "translated_string"):
            yield from self._string(node, scope)
        elif node.type in ("concatenation", "command_name"):
            for child in node.children:
                yield from self.pieces(child, scope.deeper(), quoted)
        elif node.type in EXPANSIONS:
            yield from self._expansion(node, scope, quoted)
        elif node.type == "arithmetic_expansion":
            yield self._whole("arithmetic", node, scope, quoted)
        else:
            yield from self._text(node.start_byte, source(node), scope, None, quoted)

    def body(self, node: Node, scope: Scope) -> Iterator[Piece]:
        """The pieces of a here-doc whose delimiter is not quoted."""
        yield from self._mixed(node, node.start_byte, node.end_byte, scope, "$`\\\n")

    def _string(self, node: Node, scope: Scope) -> Iterator[Piece]:
        start = node.start_byte + source(node).index('"') + 1 if '"' in source(node) else node.start_byte
        empty = True
        for piece in self._mixed(node, start, max(start, node.end_byte - 1), scope, IN_DOUBLE_QUOTES):
            empty = False
            yield piece
        if empty:
            yield Piece("text", "", scope.document.place(node.start_byte), scope.shell, True)

    def _mixed(self, node: Node, start: int, end: int, scope: Scope, escapes: str) -> Iterator[Piece]:
        """Text between ``start`` and ``end`` with the expansions among the children of ``node``."""
        at = start
        data = scope.document.data
        for child in node.children:
            if child.type not in EXPANSIONS and child.type != "arithmetic_expansion":
                continue
            begin = child.start_byte  # tree-sitter counts blanks before '$' to the expansion
            while begin < child.end_byte and data[begin : begin + 1].isspace():
                begin += 1
            yield from self._text(at, data[at:begin].decode("utf-8", "replace"), scope, escapes, True)
            yield from self.pieces(child, scope.deeper(), True)
            at = child.end_byte
        yield from self._text(at, data[at:end].decode("utf-8", "replace"), scope, escapes, True)

    def _text(self, start: int, raw: str, scope: Scope, escapes: str | None, quoted: bool) -> Iterator[Piece]:
        """Literal text, with the holes of the document filled again."""
        piece = text_piece(scope.document, scope.shell, start, raw, escapes=escapes, quoted=quoted)
        at = 0
        for index, character in enumerate(piece.text):
            if FIRST_HOLE <= ord(character) <= LAST_HOLE and character in scope.document.holes:
                if index > at:
                    yield piece.slice(at, index)
                yield replace(scope.document.holes[character], quoted=quoted)
                at = index + 1
        if at < len(piece.text) or (escapes == "" and not piece.text):  # '' is an empty word
            yield piece.slice(at, len(piece.text))

    def _expansion(self, node: Node, scope: Scope, quoted: bool) -> Iterator[Piece]:
        if node.type in ("command_substitution", "process_substitution"):
            yield self._whole("command", node, scope, quoted)
            return
        name, operator = expansion_name(node)
        offset = scope.document.place(node.start_byte)
        self.script.references.append(
            Reference(name, offset, written(node, scope), operator, scope.shell, scope.tested)
        )
        if name in ("@", "*") and scope.arguments is not None:
            yield from spread(scope.arguments, quoted, name)
            return
        if name.isdigit() and scope.arguments is not None and 0 < int(name) <= len(scope.arguments) and not operator:
            yield from spread(scope.arguments[int(name) - 1 : int(name)], quoted, name)
            return
        value = scope.variables.get(name)
        if value is not None and value.words is not None and operator in KEEPS_VALUE:
            yield from spread(value.words, quoted, name)
        else:
            yield self._whole("variable", node, scope, quoted, name, operator)

    def _whole(self, kind: str, node: Node, scope: Scope, quoted: bool, name: str = "", operator: str = "") -> Piece:
        """An expansion as one piece, the commands inside it walked."""
        commands = self.walk(node, scope) if node.type != "simple_expansion" else ()
        names = resolved_names(names_in(node), scope)
        text, offset = written(node, scope), scope.document.place(node.start_byte)
        return Piece(kind, text, offset, scope.shell, quoted, name, operator, names, commands)


def written(node: Node, scope: Scope) -> str:
    """The text of a node as the user wrote it: what an outer shell expands is shown, too."""
    text = source(node).strip()
    for hole, piece in scope.document.holes.items():
        text = text.replace(hole, piece.text)
    return text


def resolved_names(names: Sequence[str], scope: Scope) -> tuple[str, ...]:
    """Names as written -> the names that the values were made of."""
    found: dict[str, bool] = {}
    for name in names:
        value = scope.variables.get(name)
        for inner in (name,) if value is None else value.names:
            found[inner] = True
    return tuple(found)


def expansion_name(node: Node) -> tuple[str, str]:
    """Name and operator of ``$name`` or ``${name:-x}``; '[]' in front of the operator for a subscript."""
    name, operator = "", ""
    for child in node.children:
        if child.type == "subscript" and not name:
            name = source(child.children[0])
            index = source(child)[len(name) :]
            operator = "" if index in ("[@]", "[*]") else "[]"
        elif child.type in ("variable_name", "special_variable_name") and not name:
            name = source(child)
        elif child.type not in ("${", "}", "$") and not child.is_named and not operator:
            operator = source(child).strip()
    return name, operator


def spread(words: Sequence[Word], quoted: bool, name: str) -> Iterator[Piece]:
    """The pieces of a known value; text that may still be split into words carries the variable's name."""
    for index, word in enumerate(words):
        if index:
            yield Piece(BREAK, "", word.offset, Shell())
        for piece in word.pieces:
            yield replace(piece, quoted=quoted, name="" if quoted else name) if piece.kind == "text" else piece


def split(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Split at array boundaries and at blanks in unquoted values, as the shell does."""
    groups: list[list[Piece]] = [[]]
    for piece in pieces:
        if piece.kind == BREAK:
            groups.append([])
        elif piece.kind == "text" and not piece.quoted and piece.name:
            at, text = 0, piece.text
            for index, character in enumerate(text):
                if character in " \t\n":
                    if index > at:
                        groups[-1].append(piece.slice(at, index))
                    if groups[-1]:
                        groups.append([])
                    at = index + 1
            if at < len(text):
                groups[-1].append(piece.slice(at, len(text)))
        else:
            groups[-1].append(piece)
    return [group for group in groups if group]


def value_of(words: Sequence[Word]) -> Value:
    """The value of a variable made of ``words``; unknown when it is too large to follow (``A=$A$A``, many times)."""
    names = tuple(dict.fromkeys(name for word in words for piece in word.pieces for name in piece.names))
    pieces = [piece for word in words for piece in word.pieces]
    small = len(pieces) <= MAX_PIECES and sum(len(piece.text) for piece in pieces) <= MAX_TEXT
    return Value(tuple(words) if small else None, names)


def joined(before: Value, after: Value) -> Value:
    """A value after a branch that may not have run: known only as far as both say the same."""
    return after if before.per_task and after.per_task else UNKNOWN
