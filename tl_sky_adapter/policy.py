"""The contract for everyone's SkyPilot tasks. This module imports sky."""

from __future__ import annotations

import sky

from .launching import apply


class MultiNodePolicy(sky.AdminPolicy):  # type: ignore[misc]
    """The six variables for every multi-node task that is launched here.

    Put `admin_policy: tl_sky_adapter.MultiNodePolicy` into SkyPilot's config.yaml (of the client, of the API server, or
    of both: applied twice it changes nothing more). Single-node tasks and services stay as they are.
    """

    @classmethod
    def validate_and_mutate(cls, user_request: sky.UserRequest) -> sky.MutatedUserRequest:
        """Called by SkyPilot for each task of a launch, exec, or jobs launch (sky/admin_policy.py)."""
        return sky.MutatedUserRequest(apply(user_request.task), user_request.skypilot_config)
