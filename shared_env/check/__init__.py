"""Find the mistakes of multi-node scripts before they become a job that hangs."""

from __future__ import annotations

from .torchrun_trap import TrapLocation, torchrun_trap

__all__ = ["TrapLocation", "torchrun_trap"]
