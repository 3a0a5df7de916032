"""Follow a command to what it starts in the end: through srun, ``bash -c``, functions, files written on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .commands import RANKS, UNKNOWN, Assignment, Command, Scope, Script
from .expand import MAX_DEPTH
from .options import MPIRUN, SLURM, read_options
from .programs import (
    MPI_STARTERS,
    REMOTE_SHELLS,
    SHELLS,
    env_assignments,
    inner_program,
    program_name,
    script_argument,
    shell_body,
)
from .shell_syntax import Document, Piece, Shell, Word, source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node


class Follower:
    """The half of the walk that knows programs; `Walker` is the half that knows the shell's grammar."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.functions: dict[str, tuple[Node, Scope]] = {}
        self.called: set[str] = set()

    def document(self, scope: Scope) -> None:
        """Walk the text of ``scope.document``."""
        raise NotImplementedError

    def walk(self, node: Node, scope: Scope) -> Command | None:
        """Walk one statement."""
        raise NotImplementedError

    def run(self, words: list[Word], scope: Scope, offset: int) -> Command:
        """Note a command and follow it to the program it starts in the end."""
        name = program_name(words[0])
        command = Command(words, name, scope.shell, scope.launcher, scope, offset)
        self.script.commands.append(command)
        deeper = scope.deeper()
        if scope.depth > MAX_DEPTH:
            return command
        if name == "env":
            for variable, word in env_assignments(words):
                self.note(variable, word, word.offset, f"{variable}={word.text}", scope, prefix=True)
        if name in self.functions:
            self._call(name, words[1:], scope)
        elif name == "srun" or name in MPI_STARTERS:
            grammar = SLURM if name == "srun" else MPIRUN
            self._start(read_options(words[1:], grammar)[1], scope.copy(launcher=command))
        elif name == "tfl-remote-trap":
            self.read(words[-1].pieces, deeper, scope.shell)
        elif name == "eval":
            self.read([piece for word in words[1:] for piece in (*word.pieces, _blank(word))], deeper, scope.shell)
        elif name in SHELLS:
            self._shell(words, scope)
        elif name not in REMOTE_SHELLS:
            self._other(words, deeper)
        return command

    def _other(self, words: list[Word], scope: Scope) -> None:
        inner, path = inner_program(words), words[0].literal or ""
        if inner:
            self._start(inner, scope)
        elif path in self.script.files:
            self.read(self.script.files[path], scope.copy(arguments=tuple(words[1:])), None, here_doc=True)
        else:
            _forget(program_name(words[0]), words, scope)

    def _start(self, words: list[Word], scope: Scope) -> None:
        if words:
            self.run(words, scope, words[0].offset)

    def _shell(self, words: Sequence[Word], scope: Scope) -> None:
        body, file = shell_body(words), script_argument(words)
        if body is not None:
            arguments = words[list(words).index(body) + 2 :]  # the word behind the text is $0
            self.read(body.pieces, scope.copy(arguments=tuple(arguments)), None)
        elif file is not None and file.literal in self.script.files:
            self.read(self.script.files[file.literal or ""], scope.copy(arguments=()), None, here_doc=True)

    def read(self, pieces: Sequence[Piece], scope: Scope, shell: Shell | None, here_doc: bool = False) -> None:
        """Walk text that another shell reads; a new shell if ``shell`` is None."""
        if shell is None:
            shell = Shell(scope.launcher, here_doc or scope.shell.here_doc)
            if scope.launcher is not scope.shell.launcher:  # a task: the task prolog has set the ranks anew
                for name in [name for name in RANKS if scope.variables.get(name, UNKNOWN).per_task]:
                    del scope.variables[name]
        self.document(scope.deeper(document=Document.from_pieces(pieces), shell=shell))

    def _call(self, name: str, arguments: list[Word], scope: Scope) -> None:
        self.called.add(name)
        body, outer = self.functions[name]
        known = None if "shift" in source(body) else tuple(arguments)
        inner = replace(scope, document=outer.document, arguments=known, depth=scope.depth + MAX_DEPTH // 8)
        self.walk(body, inner)

    def note(self, name: str, word: Word | None, offset: int, text: str, scope: Scope, prefix: bool = False) -> None:
        """Note an assignment."""
        self.script.assignments.append(Assignment(name, word, offset, text, scope.shell, scope, prefix))


def _blank(word: Word) -> Piece:
    return Piece("text", " ", word.offset, Shell(), offsets=(word.offset,))


def _forget(name: str, words: Sequence[Word], scope: Scope) -> None:
    """``read``, ``mapfile`` and the like give variables values that are not in the script."""
    if name in ("read", "mapfile", "readarray", "let", "printf", "getopts"):
        for word in words[1:]:
            scope.variables.update({word.text.split("=")[0]: UNKNOWN})
