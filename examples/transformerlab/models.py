"""Stand-ins with the fields of Transformer Lab's own models, so that the providers here can be run without it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ClusterConfig:
    """What a launch asks for."""

    cluster_name: str | None = None
    provider_name: str | None = None
    provider_id: str | None = None
    instance_type: str | None = None
    cpus: int | str | None = None
    memory: int | str | None = None
    accelerators: str | None = None
    disk_size: int | None = None
    num_nodes: int | None = 1
    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    use_spot: bool = False
    image_id: str | None = None
    idle_minutes_to_autostop: int | None = None
    run: str | None = None
    setup: str | None = None
    env_vars: dict[str, str] = field(default_factory=dict)
    file_mounts: dict[str, str] = field(default_factory=dict)
    provider_config: dict[str, Any] = field(default_factory=dict)


@dataclass
class JobConfig:
    """One more job; `timeout` is in seconds."""

    run: str
    job_name: str | None = None
    env_vars: dict[str, str] = field(default_factory=dict)
    num_nodes: int | None = None
    timeout: int | None = None
    provider_config: dict[str, Any] = field(default_factory=dict)
