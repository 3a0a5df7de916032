"""`tl-slurm preflight`: run the rendezvous test as a job, and show its table here."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import click

from shared_env import expand_nodelist, preflight
from shared_env.console import say

from .jobs import FIRST_POLL, LAST_POLL, Job, JobError, JobStatus
from .script import BatchRequest
from .submission import submit_request

# Beside the test itself: the placing of the task prolog, and slow starts of tasks.
EXTRA_SECONDS = 60


def preflight_request(
    num_nodes: int,
    *,
    partition: str | None = None,
    sbatch_flags: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float = preflight.TIMEOUT,
    master_addr: str = "hostname",
    master_addr_suffix: str = "",
) -> BatchRequest:
    """The request of a job that runs the test as every process; nothing of ours has to be on the nodes.

    Args:
        num_nodes: nodes, 2 or more.
        partition: partition; None leaves it to Slurm.
        sbatch_flags: text of sbatch options; a task layout in it starts more than one process a node.
        env: variables to test with, as in a task's `env`.
        timeout: seconds until the processes give up waiting for each other.
        master_addr: "hostname" or "ip".
        master_addr_suffix: text behind the host name.

    Raises:
        ValueError: an argument cannot become a job.
    """
    # All processes shall tell what they found, also after one has failed; one that hangs is ended by --wait.
    launcher = "srun --kill-on-bad-exit=0 --wait=5 "
    return BatchRequest(
        preflight.run_text(("--records", f"--timeout={timeout:g}"), launcher),
        num_nodes=num_nodes,
        job_name="preflight",
        partition=partition,
        sbatch_flags=sbatch_flags,
        env=env,
        time_limit_seconds=timeout + EXTRA_SECONDS,
        master_addr=master_addr,
        master_addr_suffix=master_addr_suffix,
    )


@click.command(name="preflight")
@click.option("--nodes", type=click.IntRange(min=2), required=True, metavar="N", help="Number of nodes, 2 or more.")
@click.option("--partition", help="Partition (queue); Slurm's default when left out.")
@click.option("--sbatch-flags", help="Options of sbatch, e.g. '--ntasks-per-node=4 --gpus-per-node=4'.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Test with this variable set. Repeatable.")
@click.option("--timeout", type=click.FloatRange(min=1), default=preflight.TIMEOUT, show_default=True,
              metavar="SECONDS", help="How long the processes wait for each other.")  # fmt: skip
@click.option("--master-addr", type=click.Choice(["hostname", "ip"]), default="hostname", show_default=True,
              help="What MASTER_ADDR is; ip where node names do not resolve.")  # fmt: skip
@click.option("--master-addr-suffix", default="", metavar="TEXT", help="Text behind the host name, e.g. -ib.")
@click.option("--export-hints", is_flag=True, help="Print the variables to set when an interface is to blame.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    nodes: int, env: tuple[str, ...], timeout: float, export_hints: bool, as_json: bool, **options: str | None
) -> int:
    """Test whether the processes of a job find each other: names, port, firewall, ranks, GPUs.

    Exits with 0 when all is well, else with 1 and the fault by name.

    \b
    Examples:
      tl-slurm preflight --nodes 2
      tl-slurm preflight --nodes 4 --partition gpu --sbatch-flags '--gpus-per-node=8'
      tl-slurm preflight --nodes 2 --env MASTER_PORT=23456 --export-hints
    """
    request = preflight_request(nodes, env=dict(map(_pair, env)), timeout=timeout, **options)  # type: ignore[arg-type]
    job = submit_request(request, on_retry=say)
    say(f"submitted job {job.job_id}")
    last = _wait(job)
    output = read_log(job, last)
    records = preflight.records_in(output)
    for line in output.splitlines():
        if line.strip() and preflight.MARK not in line:
            say(line)
    if not records:
        say(f"error: no process of {last} reported; what the job printed is above (log: {last.log})", "bold red")
        return 1
    verdict = preflight.judge(records, expand_nodelist(last.nodes) if last.nodes else ())
    preflight.show(verdict, as_json, export_hints)
    if "output" not in {option.name for option in request.options}:
        with suppress(OSError):
            Path(last.log).unlink()
    if verdict["ok"] and last.state != "succeeded":
        say(f"error: all processes met, but then: {last}", "bold red")
        return 1
    return 0 if verdict["ok"] else 1


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--env {text}: write NAME=VALUE")
    return name, value


def _wait(job: Job) -> JobStatus:
    """The job's last status; an interrupt, or anything else that ends this, ends the job."""
    pause, before = FIRST_POLL, None
    try:
        while not (found := job.status()).finished:
            if (found.state, found.reason, found.start) != before and found.state == "pending":
                say(f"{found}{f', starts about {found.start}' if found.start else ''}")
            before = (found.state, found.reason, found.start)
            pause = FIRST_POLL if found.state == "running" else min(1.5 * pause, LAST_POLL)
            time.sleep(pause)
    except BaseException:
        with suppress(JobError):
            job.cancel()
        raise
    return found


def read_log(job: Job, last: JobStatus, patience: float = 15) -> str:
    """What the job printed. On a network file system its end may appear here later than the job ends.

    Args:
        job: a job that has ended.
        last: its last status.
        patience: seconds to wait for a file that is not there, or lacks processes of a job that succeeded.

    Raises:
        JobError: there is no log here.
    """
    end = time.monotonic() + patience
    while True:
        late = time.monotonic() >= end
        try:
            text = b"".join(job.logs()).decode("utf-8", "replace")
        except JobError:
            if late:
                raise
            text = ""
        records = preflight.records_in(text)
        complete = bool(records) and len(records) >= records[0]["started"]
        if late or complete or (text and last.state != "succeeded"):
            return text
        time.sleep(FIRST_POLL)
