"""Walk the syntax tree of a script in the order in which the shell runs it and note commands and assignments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .commands import RANKS, UNKNOWN, Assignment, Command, Comment, Reference, Scope, Script, Value, assigned_names
from .expand import MAX_DEPTH, Expander, joined, value_of
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
from .shell_syntax import Document, Piece, Shell, Word, source, text_piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

MAX_COMMANDS = 4000  # a script that calls functions in functions must not explode
CONDITIONAL = frozenset({"if_statement", "case_statement", "elif_clause", "else_clause", "case_item"})
LOOPS = frozenset({"for_statement", "while_statement", "c_style_for_statement"})
EXPANDED = frozenset({"simple_expansion", "expansion", "arithmetic_expansion", "string", "concatenation"})
REDIRECTS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})


def analyse(text: str) -> Script:
    """All commands, assignments and variable uses of a script.

    >>> [command.name for command in analyse("srun bash -c 'torchrun a.py'").commands]
    ['srun', 'bash', 'torchrun']
    """
    script = Script(text)
    Walker(script).document(Scope(Document(script.data), Shell()))
    return script


class Walker:
    """One walk over one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.expander = Expander(script, self.inside)
        self.functions: dict[str, tuple[Node, Scope]] = {}
        self.called: set[str] = set()

    def document(self, scope: Scope) -> None:
        """Walk a whole text, then the functions that nobody called."""
        root = scope.document.parse()
        self.script.has_errors = self.script.has_errors or root.has_error
        self.walk(root, scope)
        if scope.document.origin is None:
            for name in [name for name in self.functions if name not in self.called]:
                body, outer = self.functions[name]
                self.walk(body, outer.copy(conditional=True))

    def inside(self, node: Node, scope: Scope) -> tuple[Command, ...]:
        """Walk the commands and expansions inside an expansion; what a substitution assigns is lost."""
        before = len(self.script.commands)
        inner = scope.copy(substitution=True)
        for child in node.children:
            if child.type in EXPANDED:
                list(self.expander.pieces(child, inner))
            elif child.type == "variable_name" and node.type in ("arithmetic_expansion", "binary_expression"):
                place = scope.document.place(child.start_byte)
                name = source(child)
                self.script.references.append(Reference(name, place, name, "", scope.shell, scope.tested))
            elif child.type == "binary_expression":
                self.inside(child, inner)
            elif child.is_named and child.type not in ("variable_name", "special_variable_name", "subscript", "word"):
                self.walk(child, inner)
        return tuple(self.script.commands[before:])

    def walk(self, node: Node, scope: Scope) -> Command | None:
        """One statement; returns its command when it is a single one."""
        if scope.depth > MAX_DEPTH or len(self.script.commands) > MAX_COMMANDS:
            return None
        handler = getattr(self, f"_{node.type}", None)
        if handler is not None:
            result: Command | None = handler(node, scope)
            return result
        if node.type in LOOPS:
            self._loop(node, scope)
        elif node.type in CONDITIONAL:
            self._branches(node, scope)
        elif node.type in EXPANDED or node.type == "command_substitution":
            list(self.expander.pieces(node, scope.deeper()))
        else:
            for child in node.named_children:
                self.walk(child, scope.deeper())
        return None

    def _command(self, node: Node, scope: Scope) -> Command | None:
        if node.has_error:
            return None
        prefixes = [child for child in node.children if child.type == "variable_assignment"]
        inner = scope.copy() if prefixes else scope
        for child in prefixes:
            self._assign(child, inner, prefix=True)
        words: list[Word] = []
        for child in node.children:
            if child.type in REDIRECTS:
                self._redirect(child, scope, None)
            elif child.type != "variable_assignment":
                words += self.expander.words(child, scope)
        return self.run(words, inner, scope.document.place(node.start_byte)) if words else None

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
                self._note(variable, word, word.offset, f"{variable}={word.text}", scope, prefix=True)
        if name in self.functions:
            self._call(name, words[1:], scope)
        elif name == "srun" or name in MPI_STARTERS:
            grammar = SLURM if name == "srun" else MPIRUN
            self._start(read_options(words[1:], grammar)[1], scope.copy(launcher=command))
        elif name == "tfl-remote-trap":
            self._pieces(words[-1].pieces, deeper, scope.shell)
        elif name == "eval":
            self._pieces([piece for word in words[1:] for piece in (*word.pieces, _blank(word))], deeper, scope.shell)
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
            self._pieces(self.script.files[path], scope.copy(arguments=tuple(words[1:])), None, here_doc=True)
        else:
            _forget(program_name(words[0]), words, scope)

    def _start(self, words: list[Word], scope: Scope) -> None:
        if words:
            self.run(words, scope, words[0].offset)

    def _shell(self, words: Sequence[Word], scope: Scope) -> None:
        body, file = shell_body(words), script_argument(words)
        if body is not None:
            arguments = words[list(words).index(body) + 2 :]  # the word behind the text is $0
            self._pieces(body.pieces, scope.copy(arguments=tuple(arguments)), None)
        elif file is not None and file.literal in self.script.files:
            self._pieces(self.script.files[file.literal or ""], scope.copy(arguments=()), None, here_doc=True)

    def _pieces(self, pieces: Sequence[Piece], scope: Scope, shell: Shell | None, here_doc: bool = False) -> None:
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

    def _comment(self, node: Node, scope: Scope) -> None:
        if scope.shell.launcher is None:
            place = scope.document.place(node.start_byte)
            seen = bool(self.script.commands or self.script.assignments)
            self.script.comments.append(Comment(source(node), place, not seen))

    def _function_definition(self, node: Node, scope: Scope) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[source(name)] = (body, scope)

    def _variable_assignment(self, node: Node, scope: Scope) -> None:
        self._assign(node, scope)

    def _unset_command(self, node: Node, scope: Scope) -> None:
        for child in node.named_children:
            scope.variables[source(child)] = UNKNOWN

    def _assign(self, node: Node, scope: Scope, prefix: bool = False) -> None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None or node.has_error:
            return
        name = source(target)
        place = scope.document.place(node.start_byte)
        if target.type == "subscript":
            scope.variables[source(target.children[0])] = UNKNOWN
            return
        if value is not None and value.type == "array":
            new, word = self.expander.array(value, scope), None
        else:
            word = self.expander.word(value, scope) if value is not None else Word((), place, "")
            new = value_of([word])
        if any(source(child) == "+=" for child in node.children):
            new, word = _appended(scope.variables.get(name, UNKNOWN), new), None
        scope.variables[name] = new
        self._note(name, word, place, source(node), scope, prefix)

    def _note(self, name: str, word: Word | None, offset: int, text: str, scope: Scope, prefix: bool = False) -> None:
        self.script.assignments.append(Assignment(name, word, offset, text, scope.shell, scope, prefix))

    def _loop(self, node: Node, scope: Scope) -> None:
        for name in assigned_names(node):
            scope.variables[name] = UNKNOWN
        for child in node.named_children:
            self.walk(child, scope.deeper(loop=True))
        for name in assigned_names(node):
            scope.variables[name] = UNKNOWN

    def _branches(self, node: Node, scope: Scope) -> None:
        plain = [child for child in node.named_children if child.type not in CONDITIONAL]
        clauses = [[child] for child in node.named_children if child.type in CONDITIONAL]
        self._maybe([plain, *clauses], scope)

    def _list(self, node: Node, scope: Scope) -> None:
        """``a && b``: b runs where a does, unless a is a test (of the rank, for instance)."""
        operator = next((source(child) for child in node.children if not child.is_named), "")
        first, *others = node.named_children or [node]
        if others:
            self.walk(first, scope.deeper())
        if operator == "&&" and not _is_test(first):
            for child in others:
                self.walk(child, scope.deeper())
        else:
            self._maybe([[child] for child in others], scope)

    def _maybe(self, groups: list[list[Node]], scope: Scope) -> None:
        """Walk parts that may or may not run, each from the same start."""
        inners = [scope.copy(conditional=True) for _ in groups]
        before = dict(scope.variables)
        for group, inner in zip(groups, inners, strict=True):
            for child in group:
                self.walk(child, inner)
        for inner in inners:
            for name, value in inner.variables.items():
                if before.get(name) is not value:
                    scope.variables[name] = joined(before.get(name, Value(names=(name,))), value)

    def _subshell(self, node: Node, scope: Scope) -> None:
        inner = scope.copy()
        for child in node.named_children:
            self.walk(child, inner)

    def _pipeline(self, node: Node, scope: Scope) -> None:
        previous: Command | None = None
        for child in node.named_children:
            command = self.walk(child, scope.copy())
            if previous is not None:
                previous.pipes_into = command
            previous = command

    def _test_command(self, node: Node, scope: Scope) -> None:
        tested = scope.deeper(tested=True)
        for child in node.named_children:
            self.walk(child, tested)

    _unary_expression = _binary_expression = _test_command

    def _compound_statement(self, node: Node, scope: Scope) -> None:
        if node.children and node.children[0].type == "((":
            for name in assigned_names(node):
                scope.variables[name] = UNKNOWN
        for child in node.named_children:
            self.walk(child, scope.deeper())

    def _redirected_statement(self, node: Node, scope: Scope) -> Command | None:
        command: Command | None = None
        for child in node.named_children:
            if child.type in REDIRECTS:
                self._redirect(child, scope, command)
            else:
                command = self.walk(child, scope.deeper())
        return command

    def _redirect(self, node: Node, scope: Scope, command: Command | None) -> None:
        for child in node.named_children:
            if child.type == "heredoc_body":
                self._here_doc(node, child, scope, command)
            elif child.type in REDIRECTS:
                self._redirect(child, scope, command)
            elif child.type not in ("heredoc_start", "heredoc_end", "file_descriptor", "word"):
                self.walk(child, scope.deeper())

    def _here_doc(self, node: Node, body: Node, scope: Scope, command: Command | None) -> None:
        start = next((source(child) for child in node.children if child.type == "heredoc_start"), "")
        if any(mark in start for mark in "'\"\\"):
            raw = text_piece(scope.document, scope.shell, body.start_byte, source(body), escapes="", quoted=True)
            pieces: tuple[Piece, ...] = (raw,)
        else:
            pieces = tuple(self.expander.body(body, scope))
        if command is None:
            return
        for path in self._targets(node, scope, command):
            self.script.files[path] = self.script.files[f"./{path}"] = pieces
        innermost = self.script.commands[-1]
        if innermost.name in SHELLS and shell_body(innermost.words) is None and not script_argument(innermost.words):
            self._pieces(pieces, innermost.scope.copy(arguments=()), None, here_doc=True)

    def _targets(self, node: Node, scope: Scope, command: Command) -> list[str]:
        """The files that ``cat > FILE <<EOF`` or ``tee FILE <<EOF`` writes."""
        if command.name == "tee":
            return [word.literal for word in command.words[1:] if word.literal]
        siblings = [*node.children, *(node.parent.children if node.parent is not None else ())]
        found = []
        for child in siblings if command.name == "cat" else ():
            target = child.child_by_field_name("destination") if child.type == "file_redirect" else None
            if target is not None and source(child).startswith(">"):
                found.append(self.expander.word(target, scope).text)
        return found


def _is_test(node: Node) -> bool:
    tests = ("test_command", "compound_statement", "negated_command", "pipeline")
    return node.type in tests or source(node).startswith(("test ", "grep ")) or any(map(_is_test, node.named_children))


def _blank(word: Word) -> Piece:
    return Piece("text", " ", word.offset, Shell(), offsets=(word.offset,))


def _appended(before: Value, added: Value) -> Value:
    if before.words is None or added.words is None:
        return UNKNOWN
    return value_of([*before.words, *added.words])


def _forget(name: str, words: Sequence[Word], scope: Scope) -> None:
    """``read``, ``mapfile`` and the like give variables values that are not in the script."""
    if name in ("read", "mapfile", "readarray", "let", "printf", "getopts"):
        for word in words[1:]:
            scope.variables.update({word.text.split("=")[0]: UNKNOWN})
