"""The command `tl-slurm`: task.yaml in, a Slurm job out."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from shared_env import TaskError, __version__, load_task
from shared_env.console import INTERRUPTED, debug_option, passes_check, print_json, run_command, say, show_table
from shared_env.shell import task_prolog

from .client import NO_PYSLURM, SubmitError, submission_environment
from .jobs import Job, JobError, JobStatus, LogError, worst
from .nodes import job_nodes
from .preflight_command import command as preflight
from .script import BatchRequest, RequestError
from .submission import BACKENDS, for_cluster, submit_request, test_request


@click.group(name="tl-slurm", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tl-slurm")
@debug_option
def group() -> None:
    """Run a multi-node task.yaml on SLURM.

    \b
    Examples:
      tl-slurm submit task.yaml --follow
      tl-slurm render task.yaml
      tl-slurm submit task.yaml --partition gpu --set resources.num_nodes=4 --set LR=0.1
    """


def task_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument and the options from which a request is made."""
    for decorate in reversed(
        (
            click.argument("task", type=click.Path(), metavar="TASK.yaml"),
            click.option("--partition", help="Partition (queue); Slurm's default when left out."),
            click.option("--sbatch-flags", help="Options of sbatch for this job, e.g. '--ntasks-per-node=4 -t 60'."),
            click.option("--user-sbatch-flags", help="Your usual options; --sbatch-flags replaces them."),
            click.option(
                "--set", "overrides", multiple=True, metavar="KEY=VALUE",
                help="Change the task: resources.num_nodes=4, name=x; another KEY sets an env variable. Repeatable.",
            ),
            click.option("--time-limit", type=float, metavar="SECONDS", help="End the job after so many seconds."),
            click.option("--requeue", is_flag=True, help="Start again after a node failure or preemption."),
            click.option("--master-addr", type=click.Choice(["hostname", "ip"]), default="hostname", show_default=True,
                         help="What MASTER_ADDR is; ip where node names do not resolve."),
            click.option("--master-addr-suffix", default="", metavar="TEXT", help="Text behind the host name: -ib."),
        )
    ):  # fmt: skip
        function = decorate(function)
    return function


def _request(  # one argument an option
    task: str,
    partition: str | None,
    sbatch_flags: str | None,
    user_sbatch_flags: str | None,
    overrides: tuple[str, ...],
    time_limit: float | None,
    requeue: bool,
    master_addr: str,
    master_addr_suffix: str,
    no_check: bool = True,
) -> BatchRequest:
    loaded = load_task(task, overrides=overrides)
    for problem in loaded.warnings:
        say(str(problem), "yellow")
    flags = user_sbatch_flags if sbatch_flags is None else sbatch_flags
    request = BatchRequest.from_task(
        loaded,
        partition=partition,
        sbatch_flags=flags,
        time_limit_seconds=time_limit,
        requeue=requeue,
        master_addr=master_addr,
        master_addr_suffix=master_addr_suffix,
    )
    if not passes_check(loaded, sbatch_flags=flags) and not no_check:
        raise RequestError("nothing was submitted: the task would hang or fail; mend it, or repeat with --no-check")
    return request


@group.command()
@task_options
@click.option("--show-secrets", is_flag=True, help="Print credentials, too: exactly what submit sends.")
def render(show_secrets: bool, **options: Any) -> None:
    """Print the batch script that `submit` would send, without the values of credentials.

    Those are `secrets`, and variables with names such as HF_TOKEN; the printed script takes them from the environment
    in which it is submitted.
    """
    request = for_cluster(_request(**options), submission_environment())
    text, count = (str(request), 0) if show_secrets else request.preview()
    if count:
        say(f"{count} value{'s' * (count != 1)} of credentials left out; --show-secrets prints them", "yellow")
    click.echo(text, nl=False)


@group.command()
@task_options
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True, help="How to submit.")
@click.option("--clean-env", is_flag=True, help="Give the job PATH, HOME, USER ... only, not this whole environment.")
@click.option("--no-check", is_flag=True, help="Submit although the check found an error.")
@click.option("--test-only", is_flag=True, help="Only ask Slurm whether and when the job would start.")
@click.option("--follow", is_flag=True, help="Wait for the job, show its log, and exit with its status.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (with --follow, the log goes to stderr).")
def submit(
    backend: str, clean_env: bool, no_check: bool, test_only: bool, follow: bool, as_json: bool, **options: Any
) -> int:
    """Submit a task and print its job id."""
    request = _request(**options, no_check=no_check)
    if test_only:
        result = test_request(request, inherit_environment=not clean_env)
        if as_json:
            print_json(asdict(result))
        elif result.accepted:
            click.echo(f"would start at {result.start} on {result.nodes} (partition {result.partition})")
        else:
            raise SubmitError(f"Slurm would not take the job: {result.message}")
        return 0 if result.accepted else 1
    job = submit_request(request, backend=backend, inherit_environment=not clean_env, on_retry=_warn)
    if job.note and not job.note.endswith(NO_PYSLURM):
        say(job.note, "yellow")
    facts = {"job_id": job.job_id, "backend": job.backend, "note": job.note}
    if not follow:
        if as_json:
            print_json(facts)
        else:
            click.echo(job.job_id)
            if sys.stdout.isatty():
                say(f"tl-slurm logs --follow {job.job_id}    tl-slurm cancel {job.job_id}")
        return 0
    say(f"submitted job {job.job_id}")
    status = _follow(job, to_stderr=as_json)
    if as_json:
        print_json({**facts, **asdict(status), "exit_status": status.exit_status})
    return status.exit_status


@group.command()
@click.argument("job_id")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(job_id: str, as_json: bool) -> None:
    """Show the state of a job, with Slurm's reason."""
    found = _job(job_id).status()
    if as_json:
        print_json({**asdict(found), "exit_status": found.exit_status if found.finished else None})
        return
    click.echo(str(found))
    for name, value in (("nodes", found.nodes), ("start", found.start), ("log", found.log), ("to do:", found.hint)):
        if value:
            click.echo(f"  {name:<6} {value}")


@group.command()
@click.argument("job_id")
@click.option("--timeout", type=float, metavar="SECONDS", help="Give up after so long; the job goes on.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def wait(job_id: str, timeout: float | None, as_json: bool) -> int:
    """Wait for the end of a job; exit with its status (124 after --timeout)."""
    job = _job(job_id)
    try:
        with _leaving(job):
            found = job.wait(timeout, on_change=_tell, on_note=_warn)
    except TimeoutError as error:
        say(f"error: {error}", "bold red")
        return 124
    if as_json:
        print_json({**asdict(found), "exit_status": found.exit_status})
    return found.exit_status


@group.command()
@click.argument("job_id")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended, and exit with its status.")
def logs(job_id: str, follow: bool) -> int:
    """Print the output of a job."""
    job = _job(job_id)
    if follow:
        return _follow(job).exit_status
    for piece in job.logs():
        _write(piece)
    return 0


@group.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...")
def cancel(job_ids: tuple[str, ...]) -> None:
    """Stop jobs."""
    for job_id in job_ids:
        _job(job_id).cancel()


@group.command(name="task-prolog")
def task_prolog_() -> None:
    """Print a task prolog for the whole cluster.

    With TaskProlog=/path/to/it in slurm.conf every task of every job finds the six variables; what is set stays.

    \b
    Example:
      tl-slurm task-prolog > /etc/slurm/task-prolog.sh && chmod 755 /etc/slurm/task-prolog.sh
    """
    click.echo(task_prolog(), nl=False)


group.add_command(preflight)


def _job(job_id: str) -> Job:
    return Job(job_id, environ=submission_environment())


def _tell(found: JobStatus) -> None:
    when = f", starts about {found.start}" if found.state == "pending" and found.start else ""
    where = f" on {found.nodes}" if found.state == "running" and found.nodes else ""
    say(f"{found}{where}{when}")
    if found.hint:
        say(f"  to do: {found.hint}")


def _warn(text: str) -> None:
    say(text, "yellow")


def _show_nodes(job: Job, found: JobStatus) -> None:
    """Where the ranks are, once the job has its nodes."""
    try:
        nodes = job_nodes(job)
    except JobError:  # it has just ended
        return
    if len(nodes) > 1:
        rows = [
            (each.node_rank, each.ranks or "?", each.host, each.address, each.gpus or "-", found.raw_state)
            for each in nodes
        ]
        show_table(("node rank", "ranks", "host", "address", "GPUs", "state"), rows, stderr=True)


def _write(piece: bytes, to_stderr: bool = False) -> None:
    stream = sys.stderr.buffer if to_stderr else sys.stdout.buffer
    stream.write(piece)
    stream.flush()


@contextlib.contextmanager
def _leaving(job: Job) -> Iterator[None]:
    """Whatever ends this command from outside leaves the job running, and says so."""

    def ended(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, ended)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        say(f"\njob {job.job_id} goes on: tl-slurm logs --follow {job.job_id}, or tl-slurm cancel {job.job_id}")
        raise SystemExit(end.code if isinstance(end, SystemExit) else INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(job: Job, to_stderr: bool = False) -> JobStatus:
    """Show the queue while the job waits, then its log, until it has ended; return its end, of an array the worst."""
    last: dict[str, JobStatus] = {}

    def tell(found: JobStatus) -> None:
        before = last.get(found.job_id)
        if not found.finished and str(found) != str(before):
            _tell(found)
        if found.state == "running" and not (before and before.state == "running"):
            _show_nodes(Job(found.job_id, environ=job.environ), found)
        last[found.job_id] = found

    with _leaving(job):
        try:
            for piece in job.logs(follow=True, on_change=tell, on_note=_warn):
                _write(piece, to_stderr)
        except LogError as error:
            _warn(str(error))
            if job.job_id not in last or not last[job.job_id].finished:
                last = {job.job_id: job.wait(on_change=tell, on_note=_warn)}
    end = worst(list(last.values()))
    say(str(end), "green" if end.state == "succeeded" else "bold red")
    if end.hint:
        say(f"  to do: {end.hint}")
    return end


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-slurm ARGV` and return its exit status."""
    return run_command(group, (TaskError, RequestError, ValueError, SubmitError, JobError, OSError), argv)


if __name__ == "__main__":
    raise SystemExit(main())
