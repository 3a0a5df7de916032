"""Do the nodes of a SkyPilot cluster find each other? The preflight, sent to nodes that have nothing of ours."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from shared_env import preflight
from shared_env.shell import sky_prefix

from .show import cluster_facts


def run_preflight(sky: Any, cluster: str, timeout: float) -> tuple[dict[str, Any], str]:
    """Run the preflight once on every node of a cluster that is up.

    Args:
        sky: the module.
        cluster: its name.
        timeout: seconds that the processes wait for each other.

    Returns:
        The verdict of `preflight.judge` (empty when no node reported), and what the nodes printed besides.

    Raises:
        ValueError: there is no such cluster.
        Exception: SkyPilot's own errors.
    """
    (facts,) = cluster_facts(sky, [cluster])
    # One node, too: the prefix is not only for several here, since the test reads the six variables.
    run = sky_prefix() + preflight.run_text((f"--timeout={timeout:g}", "--records"))
    task = sky.Task(name="preflight", run=run, num_nodes=facts["nodes"])
    job_id, _ = sky.stream_and_get(sky.exec(task, cluster_name=cluster), output_stream=_nowhere())
    sky.tail_logs(cluster, job_id, follow=True, output_stream=_nowhere())
    # One file a node: the common log mixes the nodes in the middle of lines.
    copies = [Path(path).expanduser() for path in sky.download_logs(cluster, [str(job_id)]).values()]
    files = sorted(path for copy in copies for path in copy.rglob("*.log"))
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
    records = preflight.records_in(text)
    rest = "\n".join(line for line in text.splitlines() if line.strip() and preflight.MARK not in line)
    return (preflight.judge(records) if records else {}), rest


def _nowhere() -> Any:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123
