# shellcheck shell=sh
# --- rendezvous (tl-multinode): defaults only; what env, setup or an option gave stays ---
#@functions@
_tlmn_addr='' _tlmn_port='' _tlmn_world='' _tlmn_ranks='' _tlmn_rdzv='' _tlmn_suffix='@SUFFIX@'
_tlmn_job=${SLURM_JOB_ID:-} _tlmn_restart=${SLURM_RESTART_COUNT:-0}
case $_tlmn_job in
    '' | *[!0-9]*)
        echo "tl-multinode: no SLURM_JOB_ID here: submit this script with sbatch (or tl-slurm submit)" >&2
        exit 1
        ;;
esac
case $_tlmn_restart in *[!0-9]*) _tlmn_restart=0 ;; esac
_tlmn_first_host "${SLURM_JOB_NODELIST:-}"
_tlmn_first=$_tlmn_host
if [ -z "${MASTER_ADDR:-}" ] && [ -n "$_tlmn_first" ]; then
    _tlmn_host=$_tlmn_first$_tlmn_suffix
    #@address@
    MASTER_ADDR=$_tlmn_host
    _tlmn_addr=$_tlmn_host
fi
if [ -z "${MASTER_ADDR:-}${SLURM_JOB_NODELIST:-}" ]; then
    echo "tl-multinode: SLURM_JOB_NODELIST is empty, so the first host is unknown: set MASTER_ADDR in env" >&2
    exit 1
fi
_tlmn_host=${MASTER_ADDR:-}
export MASTER_ADDR="${MASTER_ADDR:-$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)}"
[ -n "$_tlmn_host" ] || case $MASTER_ADDR in
    '' | *[!0-9A-Za-z._:-]*) # scontrol repeats a list that it cannot read, and is content with it
        echo "tl-multinode: no first host in SLURM_JOB_NODELIST='$SLURM_JOB_NODELIST': set MASTER_ADDR in env" >&2
        exit 1
        ;;
esac
# Below the kernel's ephemeral ports; a requeued job keeps its id, hence the restart count.
[ -n "${MASTER_PORT:-}" ] || _tlmn_port=$((10000 + (_tlmn_job + 9349 * _tlmn_restart) % 22768))
export MASTER_PORT="${MASTER_PORT:-$_tlmn_port}"
[ -n "${WORLD_SIZE:-}" ] || _tlmn_world=${SLURM_NTASKS:-@WORLD_SIZE@}
export WORLD_SIZE="${WORLD_SIZE:-${SLURM_NTASKS:-@WORLD_SIZE@}}"
# In this shell the per-task values are 0. They are set for expansion only and not exported, because srun
# would copy them to every task: each task gets its own values from the task prolog.
case $- in *a*) _tlmn_all=on && set +a ;; *) _tlmn_all=off ;; esac
[ -n "${NODE_RANK:-}" ] || { NODE_RANK=${SLURM_NODEID:-0} && _tlmn_ranks="batch_node_rank='$NODE_RANK'"; }
[ -n "${RANK:-}" ] || { RANK=${SLURM_PROCID:-0} && _tlmn_ranks="$_tlmn_ranks batch_rank='$RANK'"; }
[ -n "${LOCAL_RANK:-}" ] || { LOCAL_RANK=${SLURM_LOCALID:-0} && _tlmn_ranks="$_tlmn_ranks batch_local_rank='$LOCAL_RANK'"; }
case $_tlmn_all in on) set -a ;; esac
#@rdzv@
# One dead rank ends its step; the tasks keep --cpus-per-task (srun does not inherit it in some releases) and
# the environment of this shell (after --export=NONE).
export SLURM_KILL_BAD_EXIT="${SLURM_KILL_BAD_EXIT:-1}"
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}"
[ "${SLURM_EXPORT_ENV:-}" != NONE ] || export SLURM_EXPORT_ENV=ALL
#@place@
unset _tlmn_addr _tlmn_port _tlmn_world _tlmn_ranks _tlmn_rdzv _tlmn_suffix _tlmn_job _tlmn_restart _tlmn_host \
    _tlmn_first _tlmn_all
#@unset@
