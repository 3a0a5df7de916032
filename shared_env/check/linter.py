"""Run the rules over a task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from shared_env.credentials import mask

from . import rules_counts, rules_env, rules_rank, rules_rendezvous, rules_start  # noqa: F401  (they fill RULES)
from .finding import RULES, Finding, Hit, Rule
from .shell_syntax import Lines
from .subject import Subject

if TYPE_CHECKING:
    from shared_env.task import Task

IGNORE = re.compile(r"#\s*multinode:\s*ignore\b\s*((?:MN\d+[\s,]*)*)")
PAGES = Path(__file__).with_name("pages")


def check(task: Task, *, sbatch_flags: str | None = None) -> list[Finding]:
    """Every mistake that the rules find in a task, in the order of the file.

    Args:
        task: what `load_task` returned.
        sbatch_flags: the sbatch options that go with it, one or more a line, with or without ``#SBATCH``.

    Nothing is executed. A comment ``# multinode: ignore MN107`` on a line silences MN107 there; without a code it
    silences every rule.

    >>> from shared_env import load_task
    >>> task = load_task({"resources": {"provider": "slurm", "num_nodes": 2}, "script": "python train.py"})
    >>> [(finding.code, finding.text) for finding in check(task)]
    [('MN103', 'python train.py')]
    """
    return inspect(task, sbatch_flags=sbatch_flags)[0]


def inspect(task: Task, *, sbatch_flags: str | None = None) -> tuple[list[Finding], list[str]]:
    """What `check` returns, and which of ``script`` and ``setup`` are larger than the rules read.

    >>> from shared_env import load_task
    >>> inspect(load_task({"resources": {"provider": "slurm", "num_nodes": 2}, "script": "true; " * 50_000}))
    ([], ['script'])
    """
    subject = Subject(task, sbatch_flags)
    found: dict[tuple[str, str, int | None, int | None], Finding] = {}
    for code in sorted(RULES):
        for hit in RULES[code].check(subject):
            finding = _finding(subject, RULES[code], hit)
            if not _ignored(subject, code, hit) and not _ignored_in_file(task, finding):
                found.setdefault((code, finding.key, finding.line, finding.column), finding)
    findings = sorted(found.values(), key=lambda item: (item.line or 0, item.column or 0, item.code))
    scripts = (("script", subject.script), ("setup", subject.setup))
    return findings, [key for key, script in scripts if script.unread]


def explain(code: str) -> str:
    """The page of a rule, as Markdown. Raises ValueError for a code that is not in the table.

    >>> explain("mn101").splitlines()[0]
    '# MN101: A per-task variable is expanded by the batch shell'
    """
    rule = RULES.get(code.strip().upper())
    if rule is None:
        raise ValueError(f"no rule is called {code.strip()!r}; the rules are {min(RULES)} to {max(RULES)}")
    text = (PAGES / f"{rule.code}.md").read_text(encoding="utf-8")
    return f"# {rule.code}: {rule.title}\n\nSeverity: {rule.severity}\n\n{text}"


def rules_document() -> str:
    """The text of ``docs/rules.md``: the table, then every page."""
    rows = [f"| [{rule.code}](#{rule.code.lower()}) | {rule.severity} | {rule.title} |" for rule in _table()]
    head = (PAGES / "index.md").read_text(encoding="utf-8")
    pages = []
    for rule in _table():
        _, _, text = explain(rule.code).partition("\n")
        pages.append(f'<a id="{rule.code.lower()}"></a>\n\n## {rule.code}: {rule.title}\n{text}')
    return "\n".join([head, "| code | severity | what is wrong |", "|---|---|---|", *rows, "", *pages])


def _table() -> list[Rule]:
    return [RULES[code] for code in sorted(RULES)]


def _lines(subject: Subject, key: str) -> Lines | None:
    if key in ("script", "setup"):
        return subject.script.lines if key == "script" else subject.setup.lines
    if key == "sbatch_flags":
        return Lines(subject.sbatch_flags.encode("utf-8", "replace"))
    return None


def _finding(subject: Subject, rule: Rule, hit: Hit) -> Finding:
    lines = _lines(subject, hit.key)
    line, column = lines.position(hit.offset) if lines is not None else (1, 1)
    place: tuple[int | None, int | None] | None = (line, column)
    if hit.key != "sbatch_flags":
        place = subject.task.place_of(hit.key, line, column)
        if place is None and lines is not None:
            place = (line, column)
    at_line, at_column = place or (None, None)
    severity = hit.severity or rule.severity
    path = None if hit.key == "sbatch_flags" else subject.task.source
    hidden = subject.task.credentials.values()
    text, message, fix = (mask(text, hidden) for text in (" ".join(hit.text.split()), hit.message, hit.fix))
    text = text if len(text) <= 160 else text[:157] + "..."
    return Finding(rule.code, severity, at_line, at_column, text, message, fix, path, hit.key)


def _ignored(subject: Subject, code: str, hit: Hit) -> bool:
    """A comment on the line of the hit, on a line that continues it, or on the line above."""
    if hit.key not in ("script", "setup"):
        return False
    lines = _lines(subject, hit.key)
    if lines is None:
        return False
    first = last = lines.position(hit.offset)[0]
    while last < len(lines.starts) and lines.line_text(last).endswith("\\"):
        last += 1
    while first > 1 and (lines.line_text(first - 1).endswith("\\") or lines.line_text(first - 1).lstrip()[:1] == "#"):
        first -= 1
    return any(_silences(lines.line_text(number), code) for number in range(first, last + 1))


def _ignored_in_file(task: Task, finding: Finding) -> bool:
    """A YAML comment behind a value: the task does not keep it, the file does."""
    if finding.path is None or finding.line is None or finding.key in ("script", "setup"):
        return False
    return _silences(task.line_text(finding.line), finding.code)


def _silences(line: str, code: str) -> bool:
    match = IGNORE.search(line)
    return match is not None and (not match[1].strip() or code in re.split(r"[\s,]+", match[1]))
