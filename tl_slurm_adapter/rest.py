"""A multi-node task -> the body of a job submission to slurmrestd.

slurmrestd reads no `#SBATCH` line, so every option becomes a field. There are two families of versions. Up to v0.0.38
(Slurm 22.05) a field is an option of sbatch, and its text is read by sbatch's own parsers. From v0.0.39 on (Slurm 23.02)
it is a member of the controller's job description, with a type of its own. Source: the OpenAPI documents of slurmrestd
22.05.8, 24.11.5 and 26.05.5 (`slurmrestd --generate-openapi-spec`; GET /openapi).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from .script import BatchRequest, RequestError
from .submit import submission_environment

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import Option
    from .script import RequestFields

Fields = dict[str, Any]
OLDEST, LAST_OF_OLD, NEWEST = 36, 38, 45
DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
DEFAULT_DIRECTORY: Final = "/tmp"  # noqa: S108  # there is one on every node


def rest_payload(
    run: str,
    *,
    api_version: str = "v0.0.40",
    environment: Mapping[str, str] | None = None,
    working_directory: str | None = None,
    **request: Unpack[RequestFields],
) -> dict[str, Any]:
    """The JSON body for `POST /slurm/<api_version>/job/submit`; the other arguments are those of `render_batch_script`.

    Args:
        run: the script of the task.
        api_version: v0.0.36 to v0.0.45, one that the slurmrestd at hand offers (`offered_versions`).
        environment: the environment of the batch script, where sbatch would send the caller's. What belongs to another
            job or launcher (SLURM_*, the six rendezvous variables ...) is left out. None: a PATH and nothing else; the
            task's own `env` is in the script. PATH is never missing, since slurmrestd refuses that.
        working_directory: where the script runs and its log is put, a path on the cluster. None: the --chdir of the
            flags, else HOME of `environment`, else /tmp.
        **request: see `render_batch_script`.

    Raises:
        ValueError: an argument cannot become a job; the message names the option that this version cannot express.

    >>> body = rest_payload("srun hostname", num_nodes=2, job_name="demo", time_limit_seconds=90)
    >>> body["job"]["nodes"], body["job"]["tasks"], body["job"]["time_limit"]["number"]
    ('2', 2, 2)
    """
    return request_payload(
        BatchRequest(run, **request),
        api_version=api_version,
        environment=environment,
        working_directory=working_directory,
    )
