"""A SLURM provider that leaves scripts, options and answers to tl_slurm_adapter.

`_submit` is all that is new: the transports below it stay as they are in an existing provider. Any method may be called
from a worker thread; what goes wrong is an exception whose text is one sentence for the person who launched.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from typing import Any

from tl_slurm_adapter import (
    newest_api_version,
    parse_rest_response,
    parse_sbatch_output,
    render_batch_script,
    rest_payload,
    sbatch_command,
    submit,
)

from .models import ClusterConfig, JobConfig


class SLURMProvider:
    """Submits through `ssh`, through slurmrestd (`rest`), or on this machine (`local`)."""

    def __init__(
        self,
        mode: str = "ssh",
        rest_url: str = "",
        ssh_host: str = "",
        ssh_user: str = "root",
        ssh_key_path: str | None = None,
        ssh_port: int = 22,
        api_token: str | None = None,
        extra_config: dict[str, Any] | None = None,
    ) -> None:
        self.mode = mode
        self.rest_url = rest_url.rstrip("/")
        self.ssh_host, self.ssh_user, self.ssh_key_path, self.ssh_port = ssh_host, ssh_user, ssh_key_path, ssh_port
        self.api_token = api_token
        self.extra_config = extra_config or {}

    def launch_cluster(self, cluster_name: str, config: ClusterConfig) -> dict[str, str]:
        """Submit the job of a launch; a launch without a command runs its setup only."""
        job_id = self._submit(
            config.run or ":", config.provider_config, num_nodes=config.num_nodes, job_name=cluster_name,
            setup=config.setup, env=config.env_vars, accelerators=config.accelerators, cpus=config.cpus,
            memory=config.memory, requeue=True,
        )  # fmt: skip
        return _submitted(cluster_name, job_id)

    def submit_job(self, cluster_name: str, job: JobConfig) -> dict[str, str]:
        """Submit one more job."""
        job_id = self._submit(
            job.run, job.provider_config, num_nodes=job.num_nodes, job_name=job.job_name, env=job.env_vars,
            time_limit_seconds=job.timeout,
        )  # fmt: skip
        return _submitted(cluster_name, job_id)

    def _submit(self, run: str, provider_config: dict[str, Any], **request: Any) -> str:
        # Flags of this run replace those of the user; without a partition Slurm takes its default.
        request["sbatch_flags"] = provider_config.get("custom_sbatch_flags") or self.extra_config.get(
            "user_sbatch_flags"
        )
        request["partition"] = provider_config.get("partition") or self.extra_config.get("default_partition")
        if self.mode == "local":
            return submit(run, **request).job_id
        if self.mode == "rest":
            version = newest_api_version(self._rest_request("GET", "/openapi"))
            directory = self.extra_config.get("working_directory")
            body = rest_payload(run, api_version=version, working_directory=directory, **request)
            return parse_rest_response(self._rest_request("POST", f"/slurm/{version}/job/submit", body))
        # Only standard output comes back, and Slurm's words shall come with it.
        return parse_sbatch_output(
            self._ssh_execute("exec 2>&1\n" + sbatch_command(render_batch_script(run, **request)))
        )

    def _ssh_execute(self, command: str) -> str:
        key = ["-i", self.ssh_key_path] if self.ssh_key_path else []
        options = ["-o", "BatchMode=yes", *self.extra_config.get("ssh_options", [])]
        target = f"{self.ssh_user}@{self.ssh_host}"
        done = subprocess.run(
            ["ssh", *options, *key, "-p", str(self.ssh_port), target, command], capture_output=True, text=True
        )
        if done.returncode == 255:  # ssh itself
            raise ConnectionError(f"cannot log in to {target}: {done.stderr.strip()}")
        return done.stdout

    def _rest_request(self, method: str, endpoint: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "X-SLURM-USER-NAME": self.ssh_user}
        if self.api_token:
            headers["X-SLURM-USER-TOKEN"] = self.api_token
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self.rest_url + endpoint, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)  # a refusal has a body, too, with Slurm's words


def _submitted(cluster_name: str, job_id: str) -> dict[str, str]:
    return {"cluster_name": cluster_name, "job_id": job_id, "message": "SLURM job submitted", "status": "submitted"}
