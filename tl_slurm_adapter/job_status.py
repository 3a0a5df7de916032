"""What squeue, sacct and scontrol say about a job, of every release, as one status."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Slurm's job states (squeue(1), JOB STATE CODES) in the five that a caller has to tell apart.
_STATES = {
    "pending": "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT POWER_UP_NODE",
    "running": "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED UPDATE_DB LAUNCH_FAILED "
    "EXPEDITING RECONFIG_FAIL",
    "succeeded": "COMPLETED",
    "failed": "FAILED BOOT_FAIL DEADLINE NODE_FAIL OUT_OF_MEMORY TIMEOUT",
    "cancelled": "CANCELLED PREEMPTED REVOKED",
}
STATE_OF = {raw: state for state, names in _STATES.items() for raw in names.split()}
FINISHED = ("succeeded", "failed", "cancelled")
_NO_OUTPUT_FILE = "JobLaunchFailure: it cannot write its output file"
# What to do next, by Slurm's state or reason.
_HINTS = {
    "TIMEOUT": "give it more time: --time-limit SECONDS, or --time in the flags",
    "DEADLINE": "give it a later deadline, or a shorter time limit: --deadline, --time",
    "OUT_OF_MEMORY": "give it more memory: resources.memory in GB, or --mem in the flags",
    "NODE_FAIL": "submit it again; with --requeue Slurm starts such a job again by itself",
    "BOOT_FAIL": "submit it again; with --requeue Slurm starts such a job again by itself",
    "PREEMPTED": "submit it again; with --requeue Slurm starts such a job again by itself",
    _NO_OUTPUT_FILE: "make the directory of its log, or choose another: --output in the flags",
    "JobHeldUser": "to let it start, type: scontrol release {job_id}",
    "JobHeldAdmin": "ask the administrator, who holds it back",
    "launch failed requeued held": "a node could not start it: tell the administrator, then: scontrol release {job_id}",
    "DependencyNeverSatisfied": "it can never start: tl-slurm cancel {job_id}",
    "SIGKILL": "was it its memory? the log may say so; more: resources.memory in GB, or --mem in the flags",
}


class JobError(RuntimeError):
    """Slurm does not know the job or cannot be asked, or the log cannot be found; in Slurm's words if there are."""


@dataclass(frozen=True)
class JobStatus:
    """What Slurm says about a job at one moment.

    `state` is one of pending, running, succeeded, failed, cancelled; `raw_state` is Slurm's own word. `exit_code` is
    the status of the batch script, `signal` the signal that ended it (0: none); both 0 until the job has ended.
    `restarts` counts how often it was put back in the queue.
    """

    job_id: str
    state: str
    raw_state: str
    reason: str = ""
    exit_code: int = 0
    signal: int = 0
    nodes: str = ""
    start: str = ""
    log: str = ""
    restarts: int = 0

    @property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return self.state in FINISHED

    @property
    def exit_status(self) -> int:
        """The job's end as the exit status of a command: 0, the script's own, 128 + signal, or 1."""
        if self.state == "succeeded":
            return 0
        return self.exit_code or (128 + self.signal if self.signal else 1)

    @property
    def hint(self) -> str:
        """What to do about the job's end, or about why it does not start; empty when there is nothing to say."""
        killed = "SIGKILL" if self.state == "failed" and self.signal == 9 else ""
        found = _HINTS.get(self.raw_state) or _HINTS.get(self.reason.replace("_", " ")) or _HINTS.get(killed, "")
        return "" if self.finished and self.reason.startswith("JobHeld") else found.format(job_id=self.job_id)

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        end = ""
        if self.signal:
            end = f", signal {self.signal}"
        elif self.exit_code:
            end = f", exit code {self.exit_code}"
        restarts = f", restart {self.restarts}" if self.restarts else ""
        return f"job {self.job_id}: {self.raw_state}{reason}{end}{restarts}"


def one_line(stderr: str) -> str:
    """Slurm's error text in one line, without the names of its commands.

    >>> one_line("sbatch: error: invalid partition specified: x\\nsbatch: error: Invalid partition name specified\\n")
    'invalid partition specified: x; Invalid partition name specified'
    """
    lines = [re.sub(r"^\w+: ((error|fatal): )?", "", line).strip() for line in stderr.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line))


def read_status(job_id: str, text: str) -> JobStatus:
    """The status in the output of `scontrol show job`; of an array, the elements together.

    Raises:
        JobError: there is no job in it.
    """
    records = [_record(part) for part in re.split(r"\n\s*\n", text) if "JobState=" in part]
    if not records:
        raise JobError(f"no answer about job {job_id} in: {one_line(text)[:200]!r}")
    return worst([_status(job_id, record) for record in records])


def read_table(job_id: str, text: str) -> JobStatus:
    """The status in a table of squeue or sacct, one job a line; of an array, the elements together.

    Columns: state, exit code, nodes, start, reason, restarts, output file; the last two may be missing.

    Raises:
        JobError: there is no job in it.

    >>> str(read_table("7", "FAILED|3:0|n1|2030-01-01T10:00:00|NonZeroExitCode"))
    'job 7: FAILED (NonZeroExitCode), exit code 3'
    """
    names = ("JobState", "ExitCode", "NodeList", "StartTime", "Reason", "Restarts", "StdOut")
    records = [dict(zip(names, line.strip().split("|", len(names) - 1), strict=False)) for line in text.splitlines()]
    statuses = [_status(job_id, record) for record in records if record.get("JobState")]
    if not statuses:
        raise JobError(f"no answer about job {job_id} in: {one_line(text)[:200]!r}")
    return worst(statuses)


def worst(statuses: list[JobStatus]) -> JobStatus:
    """The one that stands for an array: it is as far as its slowest element, and as bad as its worst."""
    order = ("running", "pending", "failed", "cancelled", "succeeded")
    return min(statuses, key=lambda status: order.index(status.state))


def _record(text: str) -> dict[str, str]:
    """The fields of one job; job names and comments may hold `Key=value` texts, so only known line starts count."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        name, _, value = line.partition("=")
        if name in ("StdOut", "StdErr", "WorkDir", "BatchHost"):
            fields[name] = value
        elif name in ("JobState", "Requeue", "StartTime", "NodeList", "ExitCode"):
            for word in line.split():
                key, _, value = word.partition("=")
                fields.setdefault(key, value)
    return fields


def _status(job_id: str, record: dict[str, str]) -> JobStatus:
    raw, _, by = (record.get("JobState") or " ").partition(" ")  # sacct: CANCELLED by 1000
    clean = {
        key: "" if value in ("None", "(null)", "Unknown", "N/A", "None assigned") else value
        for key, value in record.items()
    }
    reason, nodes = clean.get("Reason", ""), clean.get("NodeList", "")
    exit_code, signal = _exit(record.get("ExitCode") or "0:0")
    if raw == "OUT_OF_MEMORY" and signal == 125:  # Slurm's own number; the kernel sends SIGKILL
        signal = 9
    if raw == "NODE_FAIL" and signal == 1:  # nobody was left to say how it ended
        signal = 0
    if signal == 53:  # Slurm's way to say that slurmd could not open the files of the batch script
        signal, reason = 0, _NO_OUTPUT_FILE
    return JobStatus(
        job_id=job_id,
        state=STATE_OF.get(raw, "running"),
        raw_state=raw,
        reason=reason or (by and f"by {_user(by.removeprefix('by '))}"),
        exit_code=exit_code,
        signal=signal,
        nodes=nodes,
        start=clean.get("StartTime", ""),
        log=_expand(record.get("StdOut", ""), job_id, record.get("BatchHost") or nodes),
        restarts=int(record.get("Restarts") or 0),
    )


def _exit(text: str) -> tuple[int, int]:
    """Status and signal of the batch script; squeue 22.05 shows the number that wait(2) has."""
    exit_code, colon, signal = text.partition(":")
    if colon:
        return int(exit_code or 0), int(signal or 0)
    number = int(exit_code)
    return (0, number & 127) if number & 127 else (number >> 8, 0)


def _user(uid: str) -> str:
    import pwd

    try:
        return pwd.getpwuid(int(uid)).pw_name
    except (ValueError, KeyError):
        return uid


def _expand(path: str, job_id: str, hosts: str) -> str:
    """What scontrol, up to 24.11, leaves of the pattern of a batch script's output (sbatch(1), filename pattern).

    >>> _expand("/logs/%j-%4t-%N.out", "7", "n[1-2]")
    '/logs/7-0000-n1.out'
    """
    array, _, element = job_id.partition("_")
    values = {"n": "0", "t": "0", "s": "batch", "J": job_id, "j": job_id, "A": array, "a": element}
    if hosts and "N" in path:
        from shared_env import first_host

        values["N"] = first_host(hosts)

    def value(found: re.Match[str]) -> str:
        text = values.get(found[2], found[0])
        return text.rjust(int(found[1] or 0), "0") if text.isdecimal() else text

    return re.sub(r"%(\d*)([ntsJjAaN])", value, path)
