"""What a rule reports, and the table that every rule is in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .subject import Subject


@dataclass(frozen=True)
class Finding:
    """One mistake. ``line`` and ``column`` count from 1 in the file (in the script, if the task came from a mapping).

    ``text`` is the offending text, ``message`` one sentence on why it hangs or goes wrong, ``fix`` what to type.
    """

    code: str
    severity: str  # 'error' or 'warning'
    line: int | None
    column: int | None
    text: str
    message: str
    fix: str
    path: str | None = None  # the file
    key: str = "script"  # the key of the task that holds the text: 'script', 'setup', 'env.MASTER_PORT', ...

    def as_dict(self) -> dict[str, str | int | None]:
        """The fields as plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Hit:
    """What a rule yields: a place (byte offset in the text at ``key``) and what is to be said about it."""

    offset: int
    text: str
    message: str
    fix: str
    key: str = "script"
    severity: str = ""  # the rule's own, unless given


Check = Callable[["Subject"], Iterable[Hit]]


@dataclass(frozen=True)
class Rule:
    """One row of the table; its page is ``pages/CODE.md``."""

    code: str
    severity: str
    title: str
    check: Check


RULES: dict[str, Rule] = {}


def rule(code: str, severity: str, title: str) -> Callable[[Check], Check]:
    """Enter a function into the table."""

    def enter(check: Check) -> Check:
        RULES[code] = Rule(code, severity, title, check)
        return check

    return enter
