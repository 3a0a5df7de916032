# shellcheck shell=sh disable=SC2153
# --- launch: per-node: defaults of torchrun's options, so that `torchrun train.py` is complete ---
export PET_NNODES="${PET_NNODES:-${SKYPILOT_NUM_NODES:-1}}"
case ${SKYPILOT_NUM_GPUS_PER_NODE:-0} in
    *[!0-9]* | 0) export PET_NPROC_PER_NODE="${PET_NPROC_PER_NODE:-1}" ;;
    *) export PET_NPROC_PER_NODE="${PET_NPROC_PER_NODE:-$SKYPILOT_NUM_GPUS_PER_NODE}" ;;
esac
export PET_NODE_RANK="${PET_NODE_RANK:-$NODE_RANK}"
export PET_MASTER_ADDR="${PET_MASTER_ADDR:-$MASTER_ADDR}"
export PET_MASTER_PORT="${PET_MASTER_PORT:-$MASTER_PORT}"
export PET_RDZV_ID="${PET_RDZV_ID:-${SKYPILOT_TASK_ID:-none}}"
# --- end of launch: per-node ---
