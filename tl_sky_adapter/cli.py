"""The command `tl-sky`: task.yaml in, a SkyPilot job out."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any

import click

from shared_env import Task, __version__, load_task
from shared_env.console import (
    FAILED,
    INTERRUPTED,
    debug_option,
    find,
    passes_check,
    print_json,
    run_command,
    say,
    show_findings,
)
from shared_env.credentials import mask

from .launching import exec as exec_task
from .launching import launch as launch_task
from .task import import_sky, sky_config, to_sky_task


class SkyError(RuntimeError):
    """An error of SkyPilot's or of the task, in its own words."""


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            # SkyPilot colours its messages.
            text = mask(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip(), ctx.obj or ())
            raise SkyError(text or type(error).__name__) from error


@click.group(name="tl-sky", cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tl-sky")
@debug_option
def group() -> None:
    """Run a multi-node task.yaml on SkyPilot.

    \b
    Examples:
      tl-sky launch task.yaml --cluster train
      tl-sky exec train task.yaml --set LR=0.1
      tl-sky render task.yaml
    """


set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE",
    help="Change the task: resources.num_nodes=4, name=x; another KEY sets an env variable. Repeatable.",
)  # fmt: skip


def task_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument and the option from which a task is made."""
    return click.argument("task", type=click.Path(), metavar="TASK.yaml")(set_option(function))


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What happens after a job was sent."""
    detach = click.option("--detach", "-d", is_flag=True, help="Do not wait for the job and its log.")
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object; the log goes to stderr.")
    no_check = click.option("--no-check", is_flag=True, help="Launch although the check found an error.")
    return detach(no_check(as_json(function)))


def _load(task: str, overrides: tuple[str, ...]) -> Task:
    loaded = load_task(task, overrides=overrides)
    click.get_current_context().find_root().obj = tuple(loaded.credentials.values())
    for problem in loaded.warnings:
        say(str(problem), "yellow")
    return loaded


def _checked(task: str, overrides: tuple[str, ...], no_check: bool) -> Task:
    """The task, with what the linter says about it on stderr."""
    loaded = _load(task, overrides)
    if not passes_check(loaded) and not no_check:
        raise SkyError("nothing was launched: the task would hang or fail; mend it, or repeat with --no-check")
    return loaded


@group.command()
@task_options
@click.option("--show-secrets", is_flag=True, help="Print credentials, too: exactly what launch sends.")
def render(task: str, overrides: tuple[str, ...], show_secrets: bool) -> None:
    """Print the task as SkyPilot YAML for plain `sky launch`, without the values of credentials.

    Those are `secrets`, and variables with names such as HF_TOKEN; `sky launch` takes them from its own environment
    when it is told their names.
    """
    from .show import dump_yaml, without_credentials

    config = sky_config(_load(task, overrides))
    if not show_secrets:
        config, options = without_credentials(config)
        if options:
            count = len(options)
            say(
                f"{count} value{'s' * (count != 1)} of credentials left out; --show-secrets prints them. Set the "
                f"variables and give their names to sky launch: {' '.join(options)}",
                "yellow",
            )
    click.echo(dump_yaml(config), nl=False)


@group.command()
@task_options
@click.option("--cluster", "-c", metavar="NAME", help="Cluster to make or to use again; a new name when left out.")
@click.option("--down", is_flag=True, help="Remove the cluster after the job.")
@click.option("--dryrun", is_flag=True, help="Only show what SkyPilot would choose.")
@job_options
def launch(
    task: str,
    overrides: tuple[str, ...],
    cluster: str | None,
    down: bool,
    dryrun: bool,
    detach: bool,
    no_check: bool,
    as_json: bool,
) -> int:
    """Launch a task, show its log, and exit with SkyPilot's status: 0 succeeded, 100 failed, 103 cancelled."""
    loaded = _checked(task, overrides, no_check)
    with redirect_stdout(sys.stderr):  # SkyPilot announces the cluster
        request = launch_task(to_sky_task(loaded), cluster_name=cluster, down=down, dryrun=dryrun)
    return _job(request, loaded.num_nodes, detach or dryrun, as_json)


@group.command(name="exec")
@click.argument("cluster")
@task_options
@job_options
def exec_(cluster: str, task: str, overrides: tuple[str, ...], detach: bool, no_check: bool, as_json: bool) -> int:
    """Run a task on a cluster that is up, without its setup; status as with launch."""
    loaded = _checked(task, overrides, no_check)
    with redirect_stdout(sys.stderr):
        request = exec_task(to_sky_task(loaded), cluster_name=cluster)
    return _job(request, loaded.num_nodes, detach, as_json)


@group.command()
@click.argument("clusters", nargs=-1, metavar="[CLUSTER]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def status(clusters: tuple[str, ...], as_json: bool) -> None:
    """Show clusters, and the jobs of those that are named."""
    from .show import cluster_facts, print_clusters

    facts = cluster_facts(import_sky(), clusters)
    if as_json:
        print_json(facts)
    else:
        print_clusters(facts)


@group.command()
@click.argument("cluster")
@click.argument("job_id", type=int, required=False)
@click.option("--follow/--no-follow", "-f", default=True, show_default=True, help="Go on until the job has ended.")
def logs(cluster: str, job_id: int | None, follow: bool) -> int:
    """Print the log of a job (the last one when JOB_ID is left out); status as with launch."""
    return _logs(cluster, job_id, follow=follow)


@group.command()
@click.argument("cluster")
@click.argument("job_ids", type=int, nargs=-1, required=True, metavar="JOB_ID...")
def cancel(cluster: str, job_ids: tuple[int, ...]) -> None:
    """Stop jobs; the cluster stays up."""
    sky = import_sky()
    sky.get(sky.cancel(cluster, job_ids=list(job_ids)))


@group.command()
@click.argument("clusters", nargs=-1, required=True, metavar="CLUSTER...")
def down(clusters: tuple[str, ...]) -> None:
    """Remove clusters with everything on them."""
    sky = import_sky()
    for request in [sky.down(cluster) for cluster in clusters]:
        sky.stream_and_get(request, output_stream=sys.stderr)


@group.command()
@click.argument("task", type=click.Path(), metavar="[TASK.yaml]", required=False)
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(task: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Say what SkyPilot is here and where it can launch; with TASK.yaml, also what is wrong with the task.

    Exit status 1: a finding of severity error, or no place to launch.
    """
    from .show import here, print_here

    sky = import_sky()
    findings = []
    if task:
        loaded = _load(task, overrides)
        to_sky_task(loaded)  # SkyPilot's own opinion
        findings = find(loaded)
    facts = here(sky)
    if as_json:
        print_json({**facts, "findings": [finding.as_dict() for finding in findings]})
    else:
        print_here(facts)
        show_findings(findings)
        if task and not findings:
            click.echo(f"{task}: nothing found")
    return FAILED if not facts["infra"] or any(finding.severity == "error" for finding in findings) else 0


@group.command()
@click.argument("cluster")
@click.option("--timeout", type=click.FloatRange(min=1), default=20.0, show_default=True, metavar="SECONDS",
              help="How long the nodes wait for each other.")  # fmt: skip
@click.option("--export-hints", is_flag=True, help="Print the variables to set when an interface is to blame.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def preflight(cluster: str, timeout: float, export_hints: bool, as_json: bool) -> int:
    """Test whether the nodes of a cluster that is up find each other; exit 1 and the fault by name if not."""
    from shared_env.preflight import show

    from .preflight import run_preflight

    say(f"starting one process on every node of {cluster}")
    with redirect_stdout(sys.stderr):
        verdict, rest = run_preflight(import_sky(), cluster, timeout)
    if not verdict:
        raise SkyError(f"no node of {cluster} reported; what the job printed: {rest or 'nothing'}")
    show(verdict, as_json, export_hints)
    return 0 if verdict["ok"] else FAILED


def _job(request: Any, num_nodes: int, detach: bool, as_json: bool) -> int:
    """Wait until a job is on its cluster, then for its end; SkyPilot's words go to stderr, the job's log to stdout."""
    from .show import print_nodes

    sky = import_sky()
    job_id, handle = sky.stream_and_get(request, output_stream=sys.stderr)
    cluster = str(handle.get_cluster_name()) if handle else ""
    facts = {"cluster": cluster or None, "job_id": job_id}
    if detach or job_id is None:
        if as_json:
            print_json(facts)
        elif job_id is not None:
            click.echo(f"{cluster} {job_id}")
            say(f"tl-sky logs {cluster} {job_id}    tl-sky cancel {cluster} {job_id}")
        return 0
    status = _logs(cluster, job_id, follow=True, to_stderr=as_json)
    print_nodes(handle, num_nodes, status)
    if as_json:
        print_json({**facts, "exit_status": status})
    return status


def _logs(cluster: str, job_id: int | None, *, follow: bool, to_stderr: bool = False) -> int:
    sky = import_sky()
    stream = sys.stderr if to_stderr else None
    try:
        return int(sky.tail_logs(cluster, job_id, follow=follow, output_stream=stream) or 0)
    except KeyboardInterrupt:
        job = job_id or "JOB_ID"
        say(f"\nthe job goes on: tl-sky logs {cluster} {job}, or tl-sky cancel {cluster} {job}")
        raise SystemExit(INTERRUPTED) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run `tl-sky ARGV` and return its exit status."""
    return run_command(group, (SkyError,), argv)


if __name__ == "__main__":
    raise SystemExit(main())
