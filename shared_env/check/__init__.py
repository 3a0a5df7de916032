"""Find the mistakes of multi-node scripts before they become a job that hangs."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from .finding import RULES, Finding, Rule
from .linter import check, explain, inspect, rules_document
from .torchrun_trap import TrapLocation, torchrun_trap

if TYPE_CHECKING:
    from shared_env.task import Task

__all__ = ["RULES", "Finding", "Rule", "TrapLocation", "check", "explain", "inspect", "rules_document", "torchrun_trap"]


class _Callable(ModuleType):
    """``shared_env.check(task)`` means the function, also after an import has bound this module under its name."""

    def __call__(self, task: Task, *, sbatch_flags: str | None = None) -> list[Finding]:
        return check(task, sbatch_flags=sbatch_flags)


sys.modules[__name__].__class__ = _Callable
