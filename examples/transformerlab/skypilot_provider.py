"""A SkyPilot provider that gives every node of a task the six variables."""

from __future__ import annotations

from typing import Any

from tl_sky_adapter import prefix_run

from .models import ClusterConfig, JobConfig

# The fields of a ClusterConfig that SkyPilot knows as keys of `resources`, and what it calls the others.
RESOURCES = ("instance_type", "cpus", "memory", "accelerators", "disk_size", "region", "zone", "use_spot", "image_id")


def task_config(name: str, config: ClusterConfig | JobConfig) -> dict[str, Any]:
    """A launch, or one more job, in the keys of SkyPilot's YAML."""
    nodes = config.num_nodes or 1
    resources = {key: getattr(config, key) for key in RESOURCES if getattr(config, key, None)}
    if getattr(config, "cloud", None):
        resources["infra"] = config.cloud
    task = {
        "name": name,
        "num_nodes": nodes,
        "resources": resources,
        "envs": config.env_vars,
        "file_mounts": getattr(config, "file_mounts", None),
        "setup": getattr(config, "setup", None),
        "run": prefix_run(config.run, nodes),
    }
    return {key: value for key, value in task.items() if value}


class SkyPilotProvider:
    """Launches with SkyPilot's Python SDK."""

    def launch_cluster(self, cluster_name: str, config: ClusterConfig) -> dict[str, str]:
        """Start a cluster with a task on it."""
        import sky

        task = sky.Task.from_yaml_config(task_config(cluster_name, config))
        request_id = sky.launch(
            task, cluster_name=cluster_name, idle_minutes_to_autostop=config.idle_minutes_to_autostop
        )
        return _launched(cluster_name, request_id)

    def submit_job(self, cluster_name: str, job: JobConfig) -> dict[str, str]:
        """Run one more task on a cluster that is up."""
        import sky

        task = sky.Task.from_yaml_config(task_config(job.job_name or cluster_name, job))
        return _launched(cluster_name, sky.exec(task, cluster_name=cluster_name))


def _launched(cluster_name: str, request_id: object) -> dict[str, str]:
    return {
        "cluster_name": cluster_name,
        "job_id": str(request_id),
        "message": "SkyPilot launch requested",
        "status": "submitted",
    }
