"""What a process must not inherit: the words of a surrounding job, launcher or node about itself."""

from __future__ import annotations

from .contract import NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIXES = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "PMI", "OMPI_", "PRTE_", "TORCHELASTIC_", "PET_", "SKYPILOT_")
WORDS = frozenset(
    (*NAMES, "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")
)


def without_launchers(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a new job. SLURM_CONF stays: it says which cluster is meant.

    >>> without_launchers({"RANK": "3", "SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf", "HOME": "/root"})
    {'SLURM_CONF': '/etc/slurm.conf', 'HOME': '/root'}
    """
    return {
        name: value
        for name, value in environ.items()
        if name == "SLURM_CONF" or not (name.startswith(PREFIXES) or name in WORDS)
    }
