# shellcheck shell=sh
# --- rendezvous (tl-multinode): defaults only; what envs or the task gave stays ---
if [ -z "${MASTER_ADDR:-}" ]; then
    MASTER_ADDR=${SKYPILOT_NODE_IPS:-}
    while :; do
        # The first line that is not blank; a carriage return is blank.
        case $MASTER_ADDR in
            [[:space:]]*) MASTER_ADDR=${MASTER_ADDR#?} ;;
            *) break ;;
        esac
    done
    MASTER_ADDR=${MASTER_ADDR%%[[:space:]]*}
    if [ -z "$MASTER_ADDR" ]; then
        echo "tl-multinode: SKYPILOT_NODE_IPS is empty, so the first node is unknown: set MASTER_ADDR in envs" >&2
        exit 1
    fi
fi
export MASTER_ADDR
if [ "${MASTER_PORT:-}" = auto ]; then
    # The number that the digits of the task id spell, brought into 10000..32767.
    MASTER_PORT='' _tlmn_id=${SKYPILOT_TASK_ID:-}
    while [ -n "$_tlmn_id" ]; do
        _tlmn_rest=${_tlmn_id#?}
        case $_tlmn_id in
            [0123456789]*) MASTER_PORT=$(((${MASTER_PORT:-0} * 10 + ${_tlmn_id%"$_tlmn_rest"}) % 22768)) ;;
        esac
        _tlmn_id=$_tlmn_rest
    done
    if [ -z "$MASTER_PORT" ]; then
        echo "tl-multinode: SKYPILOT_TASK_ID has no number for MASTER_PORT=auto: give a port in envs" >&2
        exit 1
    fi
    MASTER_PORT=$((10000 + MASTER_PORT))
    unset _tlmn_id _tlmn_rest
fi
export MASTER_PORT="${MASTER_PORT:-29500}"
export NODE_RANK="${NODE_RANK:-${SKYPILOT_NODE_RANK:-0}}"
export RANK="${RANK:-${SKYPILOT_NODE_RANK:-0}}"
export LOCAL_RANK="${LOCAL_RANK:-0}"
case ${SKYPILOT_NUM_GPUS_PER_NODE:-0}${SKYPILOT_NUM_NODES:-1} in
    *[!0-9]* | 0*) export WORLD_SIZE="${WORLD_SIZE:-${SKYPILOT_NUM_NODES:-1}}" ;;
    *) export WORLD_SIZE="${WORLD_SIZE:-$((${SKYPILOT_NUM_NODES:-1} * SKYPILOT_NUM_GPUS_PER_NODE))}" ;;
esac
# --- end of rendezvous ---
