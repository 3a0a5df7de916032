"""Every command of docs/slurm.md, as a user of a login node types it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_jobs import PYTHON

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "slurm.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S) for line in block.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_command(cluster: Cluster, workdir: Path, command: str) -> None:
    (workdir / "task.yaml").write_text(re.findall(r"```yaml\n(.*?)```", TEXT, re.S)[0])
    path = f"{Path(PYTHON).parent}:/usr/local/bin:/usr/bin:/bin"
    done = cluster.run("bash", "-c", command, cwd=workdir, env={"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    if "--follow" in command:
        size = 4 if "--ntasks-per-node=2" in command else 2
        assert len(re.findall(rf"I am rank \d of {size}; we meet at {cluster.nodes[0]}:\d+\n", done.stdout)) == size
    assert "warning" not in done.stderr
