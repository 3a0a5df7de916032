"""Whether a submission that nobody answered has become a job.

A random token in a comment of the batch script says which job came from which call: it changes nothing that a user, a
plugin or another job sees (job name, comment, environment), works with every option, and Slurm gives the script of a
job back to its owner as long as it knows the job (scontrol(1), write batch_script). Two calls may submit the same
script at the same time, so the script alone would not do.
"""

from __future__ import annotations

import re
import subprocess
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS = 60.0  # how long to look; a controller that was only slow has the job by then
PAUSE = 1.0
_FIELDS = "ArrayJobID:|,SubmitTime:|,BatchFlag:|"  # a job of srun or salloc has no script
CLOCK_SKEW = 300  # seconds; munge(7) lets no machine of a cluster differ by more


def marked(script: str, token: str) -> str:
    r"""The script of one submission. The token takes the place of the empty line after the header: no line moves.

    >>> marked("#!/bin/bash\n#SBATCH --nodes=1\n\ntrue\n", "5eed")
    '#!/bin/bash\n#SBATCH --nodes=1\n# tl-multinode submission 5eed\ntrue\n'
    """
    return script.replace("\n\n", f"\n# tl-multinode submission {token}\n", 1)


class Search:
    """The search for the job of one submission.

    Args:
        token: what its script was `marked` with.
        environ: the environment of the submission; its SLURM_CONF says which cluster is meant.
    """

    def __init__(self, token: str, environ: Mapping[str, str]) -> None:
        self._token = token
        self._environ = {**environ, "TZ": "UTC"}  # with a summer time, differences of local times may be wrong
        self._since = time.time() - CLOCK_SKEW
        self._others: set[tuple[str, str]] = set()

    def until_sure(self) -> str | None:
        """The job's id, or None: it has not arrived and will not, because the controller was started since.

        Raises:
            TimeoutError: neither is sure. A controller that is alive may still have the request before it.
        """
        began = time.monotonic()
        while True:
            uptime = self._uptime()  # asked first: what is listed then comes from this controller or a later one
            # Two times in whole seconds: the controller may be up for one second more.
            restarted = uptime is not None and uptime + 1 <= time.monotonic() - began
            answered, found = self.once()
            if found or (restarted and answered):
                return found
            if time.monotonic() - began > SECONDS:
                raise TimeoutError
            time.sleep(PAUSE)

    def once(self) -> tuple[bool, str | None]:
        """Whether Slurm answered, and the id of the job if there is one now. An array has the id of the whole."""
        listed = self._ask("squeue", "--me", "--states=all", "--noheader", f"--Format={_FIELDS}")
        if listed is None:
            return False, None
        rows = (line.split("|") for line in listed.splitlines())
        # With the time: a controller that was killed may give the id of a job that it forgot to another.
        recent = {(row[0].strip(), row[1]) for row in rows if row[2] == "1" and _seconds(row[1]) >= self._since}
        complete = True
        for job in sorted(recent - self._others, key=lambda job: int(job[0]), reverse=True):
            script = self._ask("scontrol", "write", "batch_script", job[0], "-")
            if not script:  # scontrol fails with status 0
                complete = False
            elif self._token in script:
                return True, job[0]
            else:
                self._others.add(job)
        return complete, None

    def _uptime(self) -> float | None:
        """Seconds since the start of the controller that answers, by its own clock."""
        config = self._ask("scontrol", "show", "config") or ""
        times = (re.search(pattern, config) for pattern in (r"data as of (\S+)", r"BOOT_TIME\s*=\s*(\S+)"))
        now, boot = (found and _seconds(found[1]) for found in times)
        return now - boot if now and boot else None

    def _ask(self, *command: str) -> str | None:
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=self._environ)
        except OSError:
            return None
        return None if done.returncode else done.stdout


def _seconds(text: str) -> float:
    """Seconds since the epoch of one of Slurm's times in UTC; 0 for words such as Unknown."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return 0
