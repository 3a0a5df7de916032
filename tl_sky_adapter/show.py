"""What tl-sky prints: SkyPilot YAML, clusters and their jobs, findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from shared_env.console import say, show_table
from shared_env.credentials import credentials_in

POLICY = "tl_sky_adapter.MultiNodePolicy"


def dump_yaml(config: dict[str, Any]) -> str:
    r"""A mapping as YAML, in its own order, texts of several lines as blocks.

    >>> print(dump_yaml({"run": "echo 1\necho 2\n", "num_nodes": 2}), end="")
    run: |
      echo 1
      echo 2
    num_nodes: 2
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        ),
    )
    return yaml.dump(config, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def without_credentials(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """SkyPilot YAML without the values of credentials, and the options of `sky launch` that give them.

    A variable without a value must be given on the command line; of a name alone SkyPilot takes the caller's value.

    >>> without_credentials({"envs": {"LR": "1", "HF_TOKEN": "hf_abc"}, "secrets": {"KEY": "x"}})
    ({'envs': {'LR': '1', 'HF_TOKEN': None}, 'secrets': {'KEY': None}}, ['--env HF_TOKEN', '--secret KEY'])
    """
    config, options = dict(config), []
    for key, option in (("envs", "--env"), ("secrets", "--secret")):
        if values := config.get(key):
            hidden = credentials_in(values, values if key == "secrets" else ())
            config[key] = {name: None if name in hidden else value for name, value in values.items()}
            options += [f"{option} {name}" for name in values if name in hidden]
    return config, options


def cluster_facts(sky: Any, clusters: Sequence[str]) -> list[dict[str, Any]]:
    """The clusters, as plain data; with `clusters`, those and their jobs.

    Raises:
        ValueError: there is no such cluster.
    """
    found = sky.get(sky.status(cluster_names=list(clusters) or None))
    facts = [
        {
            "cluster": each["name"],
            "status": each["status"].value,
            "nodes": each["nodes"],
            "resources": each["resources_str"],
            "infra": "/".join(filter(None, (each["cloud"], each["region"]))),
        }
        for each in found
    ]
    if missing := sorted(set(clusters) - {each["cluster"] for each in facts}):
        raise ValueError(f"no cluster {', '.join(missing)}; tl-sky status lists the clusters that there are")
    for each in facts if clusters else ():
        if each["status"] == "UP":
            jobs = sky.get(sky.queue(each["cluster"]))
            each["jobs"] = [
                {"job_id": job["job_id"], "name": job["job_name"], "status": job["status"].value} for job in jobs
            ]
    return facts


def print_clusters(facts: list[dict[str, Any]]) -> None:
    """A table of clusters, each with its jobs below."""
    if not facts:
        say("no clusters; tl-sky launch TASK.yaml makes one")
        return
    _print_row("CLUSTER", "STATUS", "NODES", "RESOURCES")
    for each in facts:
        _print_row(each["cluster"], each["status"], each["nodes"], f"{each['infra']} {each['resources'] or ''}")
        for job in each.get("jobs", ()):
            _print_row(f"  job {job['job_id']}", job["status"], "", job["name"])


def print_nodes(handle: Any, num_nodes: int, status: int) -> None:
    """Where the ranks of a job were, which used all nodes of its cluster: then they are in the cluster's own order."""
    addresses = getattr(handle, "stable_internal_external_ips", None) or []
    if num_nodes < 2 or len(addresses) != num_nodes:
        return
    gpus = ", ".join(f"{count:g} {name}" for name, count in (handle.launched_resources.accelerators or {}).items())
    state = {0: "SUCCEEDED", 103: "CANCELLED"}.get(status, "FAILED")
    rows = [
        (rank, "head" if rank == 0 else f"worker{rank}", internal, gpus or "-", state)
        for rank, (internal, _) in enumerate(addresses)
    ]
    show_table(("node rank", "host", "address", "GPUs", "state"), rows, stderr=True)


def _print_row(*cells: object) -> None:
    click.echo("{:<24} {:<14} {:<6} {}".format(*map(str, cells)).rstrip())


def here(sky: Any) -> dict[str, Any]:
    """SkyPilot on this machine: versions of client and API server, where it can launch, and the admin policy."""
    from sky.client.sdk import enabled_clouds

    infra = list(sky.get(enabled_clouds()))  # first: it starts the local API server, or says that there is none
    return {
        "skypilot": sky.__version__,
        "api_server": sky.api_info().version,
        "infra": infra,
        "admin_policy": sky.skypilot_config.get_nested(("admin_policy",), None),
    }


def print_here(facts: dict[str, Any]) -> None:
    """The facts of `here`, for a person."""
    click.echo(f"SkyPilot {facts['skypilot']}, API server {facts['api_server']}")
    click.echo(f"can launch on: {', '.join(facts['infra']) or 'nothing; sky check says why'}")
    if facts["admin_policy"] == POLICY:
        click.echo(f"policy: {POLICY}: plain sky launch, sky exec and sky jobs launch set the variables, too")
    else:
        click.echo(f"policy: {facts['admin_policy'] or 'none'}; tl-sky sets the variables itself")
