"""The Python environment of the real SkyPilot: built once, outside the checkout, found again by its name."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

VERSION = "0.14.1"
CHECKOUT = Path(__file__).resolve().parents[2]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CACHE = Path(os.environ.get("TL_MULTINODE_CACHE") or "/var/cache/tl-multinode")
PACKAGES = (
    f"skypilot[slurm,remote]=={VERSION}",
    "uv==0.13.9",
    "setuptools==80.9.0",
    "tree-sitter>=0.23",  # for `tl-sky check`
    "tree-sitter-bash>=0.23",
)
# What SkyPilot's own wheel is built with, without an index, when it launches.
BUILD_PACKAGES = ("setuptools==80.9.0", "wheel==0.48.0")


def environment() -> Path:
    """The environment's directory, made if it is not there; the checkout is not installed into it."""
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    venv = CACHE / f"skypilot-{VERSION}-{python}"
    complete = venv / ".complete"
    wanted = "\n".join((*PACKAGES, *BUILD_PACKAGES))
    CACHE.mkdir(parents=True, exist_ok=True)
    with Path(f"{venv}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once: one builds, the other waits
        if not complete.exists() or complete.read_text() != wanted:
            _run(sys.executable, "-m", "venv", "--clear", str(venv))
            pip = (str(venv / "bin" / "pip"), "--disable-pip-version-check")
            _run(*pip, "install", "--quiet", *PACKAGES)
            _run(*pip, "download", "--quiet", "--no-deps", "--dest", str(venv / "wheels"), *BUILD_PACKAGES)
            complete.write_text(wanted)
    return venv


def client(venv: Path, home: Path) -> dict[str, str]:
    """The variables of a SkyPilot that keeps to itself: its files below `home`, nothing reported, nothing downloaded.

    The checkout is importable; `home` gets the list of accelerators that SkyPilot would fetch.
    """
    catalog = home / ".sky/catalogs/v8/common/accelerators.csv"
    catalog.parent.mkdir(parents=True, exist_ok=True)
    catalog.write_text('AcceleratorName,Clouds\nL4,"[]"\nA100,"[]"\n')
    return {
        "HOME": str(home),
        "PATH": f"{venv}/bin:{SYSTEM_PATH}",
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "SKYPILOT_USER_ID": "c1c1c1c1",  # 8 hexadecimal digits; part of the names of SkyPilot's jobs and sockets
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(venv / "wheels"),
    }


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1500)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit status {done.returncode}: {done.stderr or done.stdout}")
