"""What an error of a Slurm command says about the request that failed: the texts of Slurm's slurm_errno.c."""

from __future__ import annotations

import re
from typing import Final

NO_ANSWER: Final = "sbatch ended without an answer"
# The request found nobody ...
UNREACHABLE: Final = re.compile(r"\(connect failure\)|Communication connection failure|standby mode")
# ... or was turned away for now. Neither has changed anything.
FULL: Final = re.compile(r"Resource temporarily unavailable|MaxJobCount limit|Slurm job queue full|Rate limit exceeded")
# It was sent, but not answered: it may have been carried out.
UNANSWERED: Final = re.compile(
    r"Socket timed out|Zero Bytes were transmitted|\((?:send|receive|shutdown) failure\)|Insane message length|"
    r"Message (?:send|receive) failure|Unexpected message received|Connection reset by peer|Broken pipe|" + NO_ANSWER
)
_CONNECTION = re.compile(r"Unable to contact slurm|Connection (?:refused|timed out)")  # of whichever daemon


def is_away(words: str) -> bool:
    """Whether a question that failed with these words may be answered later.

    >>> is_away("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    True
    >>> is_away("slurm_load_jobs error: Invalid job id specified")
    False
    """
    return any(pattern.search(words) for pattern in (UNREACHABLE, FULL, UNANSWERED, _CONNECTION))
