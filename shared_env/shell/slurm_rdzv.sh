# shellcheck shell=sh disable=SC2154
# This script lets the batch shell expand a node rank in an srun command that starts torchrun (@TRAP@),
# so every node would be told the same rank. With these defaults of its options torchrun agrees on the ranks itself.
if [ -z "${PET_RDZV_BACKEND:-}" ]; then
    export PET_RDZV_BACKEND=c10d
    if [ -z "${PET_RDZV_ENDPOINT:-}" ]; then
        export PET_RDZV_ENDPOINT="$MASTER_ADDR:$MASTER_PORT"
        _tlmn_rdzv="batch_endpoint='$PET_RDZV_ENDPOINT'"
    fi
    if [ -z "${PET_RDZV_ID:-}" ]; then
        export PET_RDZV_ID="$_tlmn_job"
        _tlmn_rdzv="$_tlmn_rdzv batch_rdzv_id='$_tlmn_job'"
    fi
fi
