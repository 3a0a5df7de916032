"""How many tasks a job or a step has: #SBATCH lines, the sbatch flags, the options of srun."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .options import SLURM, Option, number, option, read_options
from .shell_syntax import Piece, Shell, Word

if TYPE_CHECKING:
    from .commands import Command, Script

SUB_STEP = ("nodelist", "relative", "exclude", "nodefile", "jobid", "het_group")


@dataclass(frozen=True)
class Directive:
    """One option word of a ``#SBATCH`` line or of the flags, as sbatch reads it; ``key`` says which of both."""

    name: str  # as written, without dashes
    option: Option
    key: str


def split_words(text: str, offset: int) -> list[Word]:
    """The words of an option line: quotes and a backslash protect, an unquoted # ends it (man sbatch)."""
    words: list[Word] = []
    current, start, quote, index = "", -1, "", 0
    while index < len(text):
        char = text[index]
        if not quote and char in " \t":
            if start >= 0:
                words.append(literal(current, offset + start))
            current, start = "", -1
        elif not quote and char == "#":
            break
        else:
            start = index if start < 0 else start
            if char == "\\" and quote != "'" and index + 1 < len(text):
                index += 1
                current += text[index]
            elif char == quote:
                quote = ""
            elif char in "'\"" and not quote:
                quote = char
            else:
                current += char
        index += 1
    if start >= 0:
        words.append(literal(current, offset + start))
    return words


def literal(text: str, offset: int) -> Word:
    """A word without expansions."""
    piece = Piece("text", text, offset, Shell(), quoted=True, offsets=(offset,) * len(text))
    return Word((piece,), offset, text)


def directives(script: Script | None, flags: str | None) -> list[Directive]:
    """Options of the leading ``#SBATCH`` lines, then those of the flags: the last one wins."""
    lines: list[tuple[str, int, str]] = []
    for comment in script.comments if script is not None else ():
        match = re.match(r"#SBATCH[ \t]+", comment.text)
        if match and comment.before_commands:
            lines.append((comment.text[match.end() :], comment.offset + match.end(), "script"))
    at = 0
    for line in (flags or "").replace("\r\n", "\n").split("\n"):
        match = re.match(r"[ \t]*(#SBATCH[ \t]+)?", line)
        skip = match.end() if match else 0
        lines.append((line[skip:], at + len(line[:skip].encode("utf-8", "replace")), "sbatch_flags"))
        at += len(line.encode("utf-8", "replace")) + 1
    found = []
    for text, offset, key in lines:
        for item in read_options(split_words(text, offset), SLURM)[0]:
            found.append(Directive(item.word.text.lstrip("-").split("=", 1)[0], item, key))
    return found


@dataclass(frozen=True)
class Layout:
    """Task counts as far as they are literal numbers; None where nothing is said or a variable is used."""

    options: tuple[Option, ...]

    def given(self, *names: str) -> Option | None:
        """The option with one of these names."""
        return option(self.options, *names)

    def number(self, name: str) -> int | None:
        """Its value, when it is a literal number."""
        return number(self.given(name))

    @property
    def nodes(self) -> tuple[int, int] | None:
        """Least and greatest node count of ``--nodes``."""
        found = self.given("nodes")
        text = found.value.literal if found is not None and found.value is not None else None
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text or "")
        return (int(match[1]), int(match[2] or match[1])) if match else None

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs of a node, from ``--gpus-per-node`` or ``--gres=gpu:...``."""
        for name, pattern in (("gpus_per_node", r"(?:[^:,]+:)?(\d+)"), ("gres", r"gpu(?::[^:,]+)??:(\d+)(?:\(.*\))?")):
            found = self.given(name)
            text = found.value.literal if found is not None and found.value is not None else None
            match = re.fullmatch(pattern, text or "")
            if match:
                return int(match[1])
        return None

    @property
    def one_gpu_per_task(self) -> bool:
        """Each task sees a single device."""
        per_task, bind = self.given("gpus_per_task"), self.given("gpu_bind")
        text = per_task.value.text if per_task is not None and per_task.value is not None else ""
        binding = bind.value.text if bind is not None and bind.value is not None else ""
        if binding == "none":
            return False
        return (
            re.fullmatch(r"([^:,]+:)?1", text) is not None or re.fullmatch(r"(single|per_task):1", binding) is not None
        )


def srun_layout(srun: Command) -> Layout:
    """The options of one srun command."""
    return Layout(tuple(read_options(srun.words[1:], SLURM)[0]))


def tasks_per_node(step: Layout, job: Layout, num_nodes: int) -> int | None:
    """Tasks of a step on its fullest node, when all numbers are literal; the adapter's default is one."""
    for layout in (step, job):
        if layout.given("ntasks_per_node") is not None:
            return layout.number("ntasks_per_node")
        if layout.given("ntasks") is not None:
            total = layout.number("ntasks")
            nodes = layout.nodes[0] if layout.nodes else num_nodes
            return None if total is None else -(-total // max(1, min(nodes, num_nodes)))
        if any(layout.given(name) for name in ("ntasks_per_gpu", "ntasks_per_socket", "ntasks_per_core")):
            return None
    return 1
