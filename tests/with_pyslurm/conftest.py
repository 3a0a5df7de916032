"""These tests need the real pyslurm: test_releases.py runs them beside Slurm 26.05, for which one can be built."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("pyslurm") is None:
    collect_ignore_glob = ["test_*.py"]
