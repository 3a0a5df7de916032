"""Words of a shell script: what is literal, what is expanded, and by which shell.

A script is parsed by tree-sitter-bash. A word becomes a list of pieces, and each expansion knows the shell that
performs it. The body of ``bash -c "..."`` is a new document made from the pieces of the outer word: text that the
outer shell leaves alone is parsed again, while an expansion that the outer shell has already performed stays one
opaque character (a hole) that leads back to its piece.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import tree_sitter_bash
from tree_sitter import Language, Parser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tree_sitter import Node

    from .commands import Command

FIRST_HOLE = 0xE000
LAST_HOLE = 0xF8FF
MAX_NODES = 50_000  # of a syntax tree: some thousand lines of shell
MAX_HERE_DOCS = 1_000  # tree-sitter's time grows with the square of how many are open
# Where a brace expression may start, scanner.c of tree-sitter-bash 0.25 gives the next character to isdigit(3), which
# reads outside of its table for one above U+00FF, and may end the process.
_UNSAFE = re.compile(rb"(\{[0-9]*(?:\.\.[0-9]*)?)([\xc4-\xdf].|[\xe0-\xef]..|[\xf0-\xf7]...)", re.DOTALL)
_SAFE = ("§".encode(), "§.".encode(), "§§".encode())  # as many bytes, which mean as little to a shell
EXPANSIONS = frozenset({"simple_expansion", "expansion", "command_substitution", "process_substitution"})
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "\\": "\\", "'": "'", '"': '"'}


@dataclass(eq=False)
class Shell:
    """One shell that reads text: the script's own (``launcher`` is None) or one started by srun, mpirun, ssh..."""

    launcher: Command | None = None
    here_doc: bool = False


@dataclass(frozen=True, eq=False)
class Piece:
    """Part of a word. ``name`` is set for ``$name`` and ``${name...}``, ``names`` has every name used inside."""

    kind: str  # 'text', 'variable', 'command' (a substitution), 'arithmetic'
    text: str
    offset: int
    shell: Shell
    quoted: bool = False
    name: str = ""
    operator: str = ""
    names: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()
    offsets: tuple[int, ...] = ()  # 'text': where each character stands in the script

    def slice(self, start: int, end: int) -> Piece:
        """The part of a literal piece from character ``start`` to ``end``."""
        offsets = self.offsets[start:end]
        return replace(self, text=self.text[start:end], offsets=offsets, offset=offsets[0] if offsets else self.offset)


@dataclass(frozen=True, eq=False)
class Word:
    """One word of a command, after known variables were put in; ``source`` is the text that was written."""

    pieces: tuple[Piece, ...]
    offset: int
    source: str

    @property
    def literal(self) -> str | None:
        """The value, when nothing in it is left to expand."""
        return self.text if all(piece.kind == "text" for piece in self.pieces) else None

    @property
    def text(self) -> str:
        """Literal text and the source of what is expanded."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def expansions(self) -> list[Piece]:
        """The pieces that are not literal."""
        return [piece for piece in self.pieces if piece.kind != "text"]

    @property
    def is_opaque(self) -> bool:
        """One unquoted expansion and nothing else: may become any number of words."""
        return len(self.pieces) == 1 and self.pieces[0].kind != "text" and not self.pieces[0].quoted

    def after(self, length: int) -> Word:
        """The word without its first ``length`` literal characters."""
        first = self.pieces[0]
        rest = (first.slice(length, len(first.text)), *self.pieces[1:])
        pieces = tuple(piece for piece in rest if piece.text or piece.kind != "text")
        return replace(self, pieces=pieces, offset=pieces[0].offset if pieces else self.offset)


@dataclass(eq=False)
class Document:
    """Text to be parsed. ``origin`` says for each byte where it stands in the script (None: it is the script)."""

    data: bytes
    origin: Sequence[int] | None = None
    holes: dict[str, Piece] = field(default_factory=dict)

    def place(self, byte: int) -> int:
        """Offset in the whole script of a byte of this document."""
        if self.origin is None:
            return byte
        return self.origin[byte] if byte < len(self.origin) else (self.origin[-1] if self.origin else 0)

    def parse(self) -> Node:
        """The root of the syntax tree; of an empty text where this one is larger than any script that people write."""
        data = _UNSAFE.sub(lambda found: found[1] + _SAFE[len(found[2]) - 2], self.data)
        root = _parser().parse(data if data.count(b"<<") <= MAX_HERE_DOCS else b"").root_node
        return root if root.descendant_count <= MAX_NODES else _parser().parse(b"").root_node

    @classmethod
    def from_pieces(cls, pieces: Sequence[Piece]) -> Document:
        """The text that a second shell reads, when a first one has expanded ``pieces``."""
        data = bytearray()
        origin: list[int] = []
        holes: dict[str, Piece] = {}
        for piece in pieces:
            text, offsets = piece.text, piece.offsets
            if piece.kind != "text":
                text, offsets = chr(min(FIRST_HOLE + len(holes), LAST_HOLE)), (piece.offset,)
                holes[text] = piece
            for character, offset in zip(text, offsets, strict=False):
                user_text = piece.kind == "text" and FIRST_HOLE <= ord(character) <= LAST_HOLE
                encoded = b"?" if user_text else character.encode("utf-8", "replace")
                data += encoded
                origin += [offset] * len(encoded)
        return cls(bytes(data), origin, holes)


class Lines:
    """Byte offsets of a text -> line and column, both counted from 1, columns in characters."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.starts = [0] + [index + 1 for index, byte in enumerate(data) if byte == 10]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of ``offset``."""
        line = bisect_right(self.starts, offset)
        start = self.starts[line - 1]
        return line, len(self.data[start:offset].decode("utf-8", "replace")) + 1

    def line_text(self, line: int) -> str:
        """The text of a line, without its end."""
        end = self.starts[line] - 1 if line < len(self.starts) else len(self.data)
        return self.data[self.starts[line - 1] : end].decode("utf-8", "replace")


def normalise(script: str) -> bytes:
    """The bytes that are parsed: Unix line ends, no byte that cannot be encoded, no NUL."""
    return script.replace("\r\n", "\n").replace("\0", "?").encode("utf-8", "replace")


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def descend(node: Node) -> Iterator[Node]:
    """The node and everything below it, without recursion (nesting can be deep)."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(current.children))


def source(node: Node) -> str:
    """The text of a node as written."""
    return (node.text or b"").decode("utf-8", "replace")


def text_piece(document: Document, shell: Shell, start: int, raw: str, *, escapes: str | None, quoted: bool) -> Piece:
    """A literal piece. ``escapes``: the characters that a backslash protects, None for all, '' for no escaping."""
    text, offsets, byte, index = [], [], start, 0
    while index < len(raw):
        character, width = raw[index], 1
        if character == "\\" and index + 1 < len(raw) and (escapes is None or raw[index + 1] in escapes):
            character, width = raw[index + 1], 2
        if not (width == 2 and character == "\n"):  # a continued line: both characters vanish
            text.append(character)
            offsets.append(document.place(byte))
        byte += len(raw[index : index + width].encode("utf-8", "replace"))
        index += width
    return Piece("text", "".join(text), document.place(start), shell, quoted=quoted, offsets=tuple(offsets))


def ansi_c_piece(document: Document, shell: Shell, node: Node) -> Piece:
    """The value of ``$'...'``: the common escapes, the rest as written."""
    raw, text, index = source(node)[2:-1], [], 0
    while index < len(raw):
        known = raw[index] == "\\" and raw[index + 1 : index + 2] in ESCAPES and index + 1 < len(raw)
        text.append(ESCAPES[raw[index + 1]] if known else raw[index])
        index += 2 if known else 1
    offset = document.place(node.start_byte)
    return Piece("text", "".join(text), offset, shell, quoted=True, offsets=(offset,) * len(text))


def names_in(node: Node) -> tuple[str, ...]:
    """Every variable name that an expansion uses, once, in order; names that a substitution sets are not uses."""
    found = {}
    stack = [(node, "")]
    while stack:
        current, above = stack.pop()
        if current.type in ("variable_name", "special_variable_name"):
            if above not in ("variable_assignment", "for_statement"):
                found[source(current)] = True
        else:  # a node's own `parent` costs a walk from the root
            stack.extend((child, current.type) for child in reversed(current.children))
    return tuple(found)
