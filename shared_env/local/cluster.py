"""The local single-machine Slurm cluster of a checkout (tests/cluster), for a script that calls srun."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from .machine import TryError
from .processes import GRACE, TIMED_OUT, catch_signals, restore_signals

if TYPE_CHECKING:
    from shared_env.task import Task

CLUSTER = Path(__file__).resolve().parents[2] / "tests" / "cluster" / "cluster.py"
_PACKAGES = "slurmctld slurmd slurm-client munge iproute2"
_ASKING = 10.0  # seconds that a controller may take to answer


def run_on_cluster(
    task: Task,
    why: str,
    *,
    num_nodes: int | None = None,
    gpus_per_node: int | None = None,
    timeout: float | None = None,
    arguments: Sequence[str] = (),
    tell: Callable[[str], Any] = lambda text: None,
) -> int:
    """Start a Slurm cluster on this machine, `tl-slurm submit --follow` the task there, and stop the cluster.

    Args:
        task: a task that was loaded from a file.
        why: why Slurm is needed, for messages.
        num_nodes: instead of the task's.
        gpus_per_node: (pretended) GPUs of a node, instead of the number in `accelerators`.
        timeout: seconds for the job.
        arguments: more arguments for `tl-slurm submit`.
        tell: is given remarks for the user.

    Returns:
        The exit status of the job; 124 after the timeout, 128 + N after signal N.

    Raises:
        TryError: there is a real cluster to use, or none can be started; the message says what to type.
    """
    path, cwd = str(task.source), str(Path.cwd())
    module = _cluster_module(why, path)
    nodes = num_nodes or task.num_nodes
    here = {str(CLUSTER.parents[2]), sys.prefix, sys.base_prefix, cwd}
    tell(f"{why}: starting a Slurm cluster of {nodes} nodes on this machine for it")
    with _Interruptible() as signals:
        try:
            with module.Cluster({"nodes": nodes, "gres": _gres(task), "keep": " ".join(sorted(here))}) as cluster:
                # The hosts have a /tmp of their own. The log belongs to this run: it goes with the cluster.
                copy = Path(cluster.scratch, "task.yaml")
                copy.touch(0o600)  # there may be secrets in it
                copy.write_bytes(Path(path).read_bytes())
                flags = f"--output={cluster.scratch}/log" + (f" --gpus-per-node={gpus_per_node}" * bool(gpus_per_node))
                argv = [sys.executable, "-m", "tl_slurm_adapter.cli", "submit", str(copy), "--follow"]
                argv += ["--set", f"resources.num_nodes={nodes}", "--set", "resources.provider=slurm"]
                argv += ["--sbatch-flags", flags, *arguments]
                with cluster.popen(*argv, cwd=cwd, start_new_session=True, stdin=subprocess.DEVNULL) as process:
                    try:
                        return int(process.wait(timeout))
                    finally:
                        process.terminate()
                        process.wait(GRACE)
        except subprocess.TimeoutExpired:
            tell(f"stopped after {timeout:g} s (--timeout)")
            return TIMED_OUT
        except KeyboardInterrupt:
            return 128 + signals[0]


class _Interruptible:
    """The first signal raises KeyboardInterrupt, the next ones wait until all is cleared away."""

    def __enter__(self) -> list[int]:
        self._signals: list[int] = []
        self._handlers = catch_signals(self._note)
        return self._signals

    def __exit__(self, *_: object) -> None:
        restore_signals(self._handlers)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)
        if len(self._signals) == 1:
            raise KeyboardInterrupt


def _cluster_module(why: str, path: str) -> Any:
    if _cluster_answers():
        raise TryError(f"{why}; a cluster answers here, so run it there: tl-slurm submit --follow {path}")
    missing = "the local cluster is part of a checkout of tl-multinode, not of an installed package"
    if CLUSTER.exists():
        spec = importlib.util.spec_from_file_location("tl_multinode_cluster", CLUSTER)
        assert spec is not None and spec.loader is not None  # noqa: S101
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        missing = module.missing().partition(";")[0]
        if not missing:
            return module
    raise TryError(
        f"{why}, and no cluster answers here. One of: on a login node, tl-slurm submit --follow {path}; write "
        f"`launch: per-node` and leave srun away, which needs no Slurm; or, in a checkout and as root, "
        f"apt-get install {_PACKAGES}, and this command again ({missing})"
    )


def _cluster_answers() -> bool:
    # Without this file sinfo would look for it for a minute.
    if not shutil.which("sinfo") or not Path(os.environ.get("SLURM_CONF", "/")).exists():
        return False
    try:
        done = subprocess.run(["sinfo", "--noheader"], capture_output=True, timeout=_ASKING, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def _gres(task: Task) -> str:
    """Devices of a node, of the type that the task asks for."""
    found = re.fullmatch(r"([A-Za-z0-9_.-]+):(\d+)", task.accelerators if isinstance(task.accelerators, str) else "")
    if not found or found[1].lower() == "gpu":
        return f"gpu:{found[2] if found else 8}"
    return f"gpu:{found[1]}:{found[2]}"
