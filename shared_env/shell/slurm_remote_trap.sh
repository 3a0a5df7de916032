# shellcheck shell=bash
# tfl-remote-trap hands its text to /bin/sh, in a child. Let bash read it there (/bin/sh may know no pipefail), with the
# per-task variables of this shell for expansion. Exported, they freeze no task: the task prolog replaces them.
tfl-remote-trap() (
    [ -z "${SLURM_TASK_PROLOG:-}" ] || export RANK NODE_RANK LOCAL_RANK
    if [ "$#" -ne 2 ] || [ "$1" != -- ]; then exec tfl-remote-trap "$@"; fi
    # shellcheck disable=SC2016
    _TLMN_TEXT=$2 exec tfl-remote-trap -- '_tlmn_text=$_TLMN_TEXT; unset _TLMN_TEXT; exec bash -c "$_tlmn_text"'
)
