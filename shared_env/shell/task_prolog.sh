#!/bin/sh
# Task prolog of tl-multinode. slurmstepd runs it in every task and puts each "export NAME=value" line that it
# prints into the environment of that task (srun(1), --task-prolog). The batch shell cannot know these values:
# there SLURM_PROCID, SLURM_NODEID and SLURM_LOCALID are 0, and srun copies its exports to every task.
# A value that the user gave stays; one that the batch shell filled in itself (batch_*) gives way.
batch_host="" batch_addr="" batch_port="" batch_world="" batch_node_rank="" batch_rank="" batch_local_rank=""
per_node="" batch_endpoint="" batch_rdzv_id="" _tlmn_suffix="" next_prolog=""
#@settings@
#@functions@
set -f
give() {
    printf "export %s=%s\n" "$1" "$2"
    export "$1=$2"
}
step=${SLURM_STEP_ID:-0} restart=${SLURM_RESTART_COUNT:-0}
# Special steps (interactive ones) have ids close to 2^32.
case $step in *[!0-9]* | ????????*) step=0 ;; esac
case $restart in *[!0-9]*) restart=0 ;; esac

if [ -z "${MASTER_ADDR:-}" ] || [ "$MASTER_ADDR" = "$batch_addr" ]; then
    list=${SLURM_STEP_NODELIST:-${SLURM_JOB_NODELIST:-}}
    if [ "${SLURM_DISTRIBUTION:-}" = arbitrary ]; then
        # Rank 0 is on the first host of the host file, not on the first node of the (sorted) list.
        list=
        if [ -r "${SLURM_HOSTFILE:-}" ]; then
            while read -r list || [ -n "$list" ]; do
                list=${list%%[*#[:space:]]*}
                [ -z "$list" ] || break
            done < "$SLURM_HOSTFILE"
        fi
    fi
    _tlmn_first_host "$list"
    if [ -z "$_tlmn_host" ]; then
        printf "print tl-multinode: the host of task 0 is not known here: set MASTER_ADDR (and MASTER_PORT) in env\n"
        [ -z "${MASTER_ADDR:-}" ] || printf "unset MASTER_ADDR\n"
        unset MASTER_ADDR
    elif [ "$_tlmn_host" = "$batch_host" ] && [ -n "$batch_addr" ]; then
        give MASTER_ADDR "$batch_addr"
    else
        _tlmn_host=$_tlmn_host$_tlmn_suffix
        #@address@
        give MASTER_ADDR "$_tlmn_host"
    fi
fi
if [ -z "${MASTER_PORT:-}" ] || [ "$MASTER_PORT" = "$batch_port" ]; then
    case ${SLURM_JOB_ID:-x} in
        *[!0-9]*) ;;
        *) give MASTER_PORT $((10000 + (SLURM_JOB_ID + 9349 * restart + 14071 * step) % 22768)) ;;
    esac
fi
if [ -z "${WORLD_SIZE:-}" ] || [ "$WORLD_SIZE" = "$batch_world" ]; then
    give WORLD_SIZE "${SLURM_STEP_NUM_TASKS:-${SLURM_NTASKS:-$batch_world}}"
fi
if [ -z "${NODE_RANK:-}" ] || [ "$NODE_RANK" = "$batch_node_rank" ]; then give NODE_RANK "${SLURM_NODEID:-}"; fi
if [ -z "${RANK:-}" ] || [ "$RANK" = "$batch_rank" ]; then give RANK "${SLURM_PROCID:-}"; fi
if [ -z "${LOCAL_RANK:-}" ] || [ "$LOCAL_RANK" = "$batch_local_rank" ]; then give LOCAL_RANK "${SLURM_LOCALID:-}"; fi

if [ -n "$per_node" ]; then
    # torchrun reads the defaults of its options from PET_*: a bare `torchrun train.py` is then complete.
    IFS=,
    # shellcheck disable=SC2086
    set -- ${CUDA_VISIBLE_DEVICES:-${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:-}}}
    [ "${1:-}" != NoDevFiles ] || shift
    [ "$#" -gt 0 ] || set -- 0
    [ -n "${PET_NNODES:-}" ] || give PET_NNODES "${SLURM_STEP_NUM_NODES:-${SLURM_NNODES:-1}}"
    [ -n "${PET_NPROC_PER_NODE:-}" ] || give PET_NPROC_PER_NODE "$#"
    [ -n "${PET_NODE_RANK:-}" ] || give PET_NODE_RANK "$NODE_RANK"
    [ -n "${PET_MASTER_ADDR:-}" ] || give PET_MASTER_ADDR "${MASTER_ADDR:-}"
    [ -n "${PET_MASTER_PORT:-}" ] || give PET_MASTER_PORT "${MASTER_PORT:-}"
    [ -n "${PET_RDZV_ID:-}" ] || give PET_RDZV_ID "${SLURM_JOB_ID:-}.$step"
fi
if [ -n "$batch_endpoint" ] && [ "${PET_RDZV_ENDPOINT:-}" = "$batch_endpoint" ]; then
    give PET_RDZV_ENDPOINT "${MASTER_ADDR:-}:${MASTER_PORT:-}"
fi
if [ -n "$batch_rdzv_id" ] && [ "${PET_RDZV_ID:-}" = "$batch_rdzv_id" ]; then
    give PET_RDZV_ID "$batch_rdzv_id.$step"
fi
# The task prolog that was set before, with its own output and exit status.
[ -z "$next_prolog" ] || exec "$next_prolog"
