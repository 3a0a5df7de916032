"""A multi-node task -> the body of a job submission to slurmrestd, and the job id in its answer.

slurmrestd reads no `#SBATCH` line, so every option becomes a field: `rest_fields` says which. An environment is a
mapping up to v0.0.38 and a list of NAME=value texts from v0.0.39 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from shared_env.inherit import without_launchers

from .client import SubmitError, failure, unknown
from .rest_fields import NEWEST, OLDEST, job_fields, number_of
from .script import BatchRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import Option
    from .script import RequestFields

LAST_WITH_MAPPING: Final = 38
PATH: Final = "/usr/local/bin:/usr/bin:/bin"
DIRECTORY: Final = "/tmp"  # noqa: S108  # there is one on every node


def rest_payload(
    run: str,
    *,
    api_version: str = "v0.0.40",
    environment: Mapping[str, str] | None = None,
    working_directory: str | None = None,
    **request: Unpack[RequestFields],
) -> dict[str, Any]:
    """The JSON body of `POST /slurm/<api_version>/job/submit`.

    Args:
        run: the script of the task.
        api_version: v0.0.36 to v0.0.45, one that the slurmrestd at hand offers (`newest_api_version`).
        environment: what the batch script finds in its environment, where sbatch would send that of its caller. What
            belongs to another job or launcher (SLURM_*, the six rendezvous variables ...) is left out. A PATH is added
            where there is none, because slurmrestd refuses a job without an environment. The `env` of the task is
            in the script and not in here.
        working_directory: where the script runs and its log is written, a path on the cluster; `--chdir` in the flags
            wins. None: HOME of `environment`, else /tmp.
        **request: see `render_batch_script`.

    Raises:
        ValueError: an argument cannot become a job; the message names the option that this version cannot express.

    >>> job = rest_payload("srun hostname", num_nodes=2, job_name="demo", time_limit_seconds=90)["job"]
    >>> job["nodes"], job["tasks"], job["time_limit"], job["environment"][0]
    ('2', 2, {'set': True, 'number': 2}, 'PATH=/usr/local/bin:/usr/bin:/bin')
    """
    version = number_of(api_version)
    job_request = BatchRequest(run, **request)
    given = without_launchers(environment or {})
    directory = working_directory or given.get("HOME") or DIRECTORY
    # sbatch calls a script that it reads from its standard input so
    job: dict[str, Any] = {"name": "sbatch", "current_working_directory": directory}
    layout = job_request.layout
    if layout.given or layout.nodes > 1:
        job["tasks"] = layout.world_size_fallback
    job.update(job_fields(job_request.options, version))
    variables = _environment(job_request.options, given, directory)
    job["environment"] = (
        variables if version <= LAST_WITH_MAPPING else [f"{name}={value}" for name, value in variables.items()]
    )
    return {"script": str(job_request), "job": job}


def newest_api_version(openapi: Mapping[str, Any]) -> str:
    """The newest version that both slurmrestd and `rest_payload` know.

    Args:
        openapi: the answer to `GET /openapi`.

    Raises:
        SubmitError: there is none.

    >>> newest_api_version({"paths": {"/slurm/v0.0.38/job/submit": {}, "/slurm/v0.0.37/job/submit": {}}})
    'v0.0.38'
    """
    offered = {
        int(found[1])
        for path in openapi.get("paths", {})
        if (found := re.fullmatch(r"/slurm/v0\.0\.(\d+)/job/submit/?", path))
    }
    known = [version for version in offered if OLDEST <= version <= NEWEST]
    if not known:
        names = ", ".join(f"v0.0.{version}" for version in sorted(offered)) or "no version of job/submit"
        raise SubmitError(f"slurmrestd offers {names}; v0.0.{OLDEST} to v0.0.{NEWEST} are known here")
    return f"v0.0.{max(known)}"


def parse_rest_response(answer: Mapping[str, Any]) -> str:
    """The job id in the answer to a submission.

    Send the body once. When no answer comes (a timeout of HTTP, a closed connection) there may be a job, as after a
    SubmitError that is `unknown`: look (`GET /slurm/<api_version>/jobs`) before it is sent again. After one that is
    `transient` there is none.

    Raises:
        SubmitError: there is none; the message has the words of Slurm, and the error says whether there may be a job.

    >>> parse_rest_response({"job_id": 42, "errors": []})
    '42'
    """
    if answer.get("job_id"):  # of a held job, Slurm 22.05 says that it is held as an error
        return str(answer["job_id"])
    errors = answer.get("errors") or []
    words = [str(text) for error in errors for text in (error.get("error"), error.get("description")) if text]
    if not words:
        raise unknown("slurmrestd gave no job id and no error")
    raise failure("\n".join(words))


def _environment(options: Iterable[Option], given: Mapping[str, str], directory: str) -> dict[str, str]:
    """`given` as --export (sbatch(1)) lets it through, with a PATH, and with what the sbatch command adds."""
    variables = dict(given)
    for option in options:
        if option.name == "export":
            variables = _exported(option.value or "", given)
        elif option.name == "ntasks-per-node":
            variables["SLURM_NTASKS_PER_NODE"] = option.value or ""
    return {"PATH": PATH, **variables, "SLURM_SUBMIT_DIR": directory}


def _exported(value: str, given: Mapping[str, str]) -> dict[str, str]:
    items = [item.strip() for item in re.findall(r"""(?:"[^"]*"|'[^']*'|[^,])+""", value)]
    variables = dict(given) if "ALL" in (item.upper() for item in items) else {}
    for item in items:
        name, equals, text = item.partition("=")
        if equals:
            variables[name] = text[1:-1] if text[:1] in ("'", '"') and text[-1:] == text[:1] else text
        elif name in given:
            variables[name] = given[name]
    return variables
