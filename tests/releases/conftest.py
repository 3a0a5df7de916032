"""Tests of what the machine itself need not have: test_releases.py runs them beside the other Slurm releases.

The real pyslurm is built there for Slurm 26.05, and both other releases come with slurmdbd and a database.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

SBIN = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
collect_ignore_glob = [] if importlib.util.find_spec("pyslurm") else ["test_pyslurm_*.py"]
if not (shutil.which("slurmdbd", path=SBIN) and shutil.which("mariadbd", path=SBIN)):
    collect_ignore_glob.append("test_accounting.py")
