"""Walk the syntax tree of a script in the order in which the shell runs it and note commands and assignments."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from .commands import UNKNOWN, Command, Comment, Reference, Scope, Script, Value, assigned_names
from .expand import MAX_DEPTH, Expander, joined, value_of
from .follow import Follower
from .programs import SHELLS, script_argument, shell_body
from .shell_syntax import Document, Piece, Shell, Word, descend, source, text_piece

if TYPE_CHECKING:
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


class Walker(Follower):
    """One walk over one script."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.expander = Expander(script, self.inside)

    def document(self, scope: Scope) -> None:
        """Walk a whole text, then the functions that nobody called."""
        root = scope.document.parse()
        self.script.has_errors = self.script.has_errors or root.has_error
        self.walk(root, scope)
        if scope.document.origin is None:
            self.script.unread = root.child_count == 0 and scope.document.data.strip() != b""
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
            elif child.type == "binary_expression" and scope.depth <= MAX_DEPTH:
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
        plain, prefixes, rest = _parts(node, scope.document.data)
        for child in plain:
            self._assign(child, scope)
        inner = scope.copy() if prefixes else scope
        for child in prefixes:
            self._assign(child, inner, prefix=True)
        words: list[Word] = []
        for child in rest:
            if child.type in REDIRECTS:
                self._redirect(child, scope, None)
            else:
                words += self.expander.words(child, scope)
        return self.run(words, inner, scope.document.place(rest[0].start_byte)) if words else None

    def _comment(self, node: Node, scope: Scope) -> None:
        if scope.shell.launcher is None:
            place = scope.document.place(node.start_byte)
            seen = self.script.assignments or any(item.name != "tfl-remote-trap" for item in self.script.commands)
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
            array = value is not None and value.type == "array"
            new, word = _appended(scope.variables.get(name, UNKNOWN), new, array), None
        scope.variables[name] = new
        self.note(name, word, place, source(node), scope, prefix)

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
            self.read(pieces, innermost.scope.copy(arguments=()), None, here_doc=True)

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


def _parts(node: Node, data: bytes) -> tuple[list[Node], list[Node], list[Node]]:
    """Assignments of their own, assignments for the command, the command's words.

    tree-sitter-bash takes ``A=1 B=2`` and the command on the next line for one command.
    """
    children = list(node.children)
    count = next((i for i, child in enumerate(children) if child.type != "variable_assignment"), len(children))
    ends = 0
    for index, (child, following) in enumerate(pairwise(children[: count + 1]), 1):
        if b"\n" in data[child.end_byte : following.start_byte].replace(b"\\\n", b""):
            ends = index
    return children[:ends], children[ends:count], children[count:]


def _is_test(node: Node) -> bool:
    tests = ("test_command", "compound_statement", "negated_command", "pipeline")
    return any(each.type in tests or source(each).startswith(("test ", "grep ")) for each in descend(node))


def _appended(before: Value, added: Value, array: bool) -> Value:
    """The value after ``A+=text`` or ``A+=(words)``."""
    if before.words is None or added.words is None or (not array and len(before.words) != 1):
        return UNKNOWN
    if array:
        return value_of([*before.words, *added.words])
    [first], [second] = before.words, added.words
    return value_of([replace(first, pieces=first.pieces + second.pieces)])
