# shellcheck shell=sh disable=SC2154
# srun runs the task prolog on the node of each task, so every node needs the file: sbcast copies it.
_tlmn_new() {
    # A new file $1 with the text $2; its caller has set umask and noclobber. /tmp is everybody's: what is there already
    # is neither overwritten nor followed nor opened (a pipe would block).
    if [ -e "$1" ] || [ -h "$1" ]; then
        echo "$1 exists"
        return 1
    fi
    printf '%s\n' "$2" > "$1"
}
_tlmn_next=${SLURM_TASK_PROLOG:-}
case $_tlmn_next in
    */tl-multinode.*.task-prolog | */.tl-multinode.*.task-prolog) _tlmn_next= ;;
    *\'*)
        echo "tl-multinode: SLURM_TASK_PROLOG has a quote in its path and will not run: $_tlmn_next" >&2
        _tlmn_next=
        ;;
esac
_tlmn_prolog='@PROLOG_HEAD@'"
batch_host='$_tlmn_first' batch_addr='$_tlmn_addr' batch_port='$_tlmn_port' batch_world='$_tlmn_world' $_tlmn_ranks
next_prolog='$_tlmn_next' _tlmn_suffix='$_tlmn_suffix' per_node='@PER_NODE@' $_tlmn_rdzv
"'@PROLOG@'
_tlmn_run=''
#@run@
# One task on every node, beside whatever else the job runs and whatever SLURM_* and SRUN_* the script sets.
# shellcheck disable=SC2016
_tlmn_each='env -i "PATH=$PATH" ${SLURM_CONF:+"SLURM_CONF=$SLURM_CONF"} srun --overlap --quiet --input=none'"\
 --jobid=$_tlmn_job --nodes=${SLURM_JOB_NUM_NODES:-@NUM_NODES@} --ntasks=${SLURM_JOB_NUM_NODES:-@NUM_NODES@}\
 --ntasks-per-node=1 --cpus-per-task=1 --mem=0 --immediate=10"
_tlmn_base=/tmp/tl-multinode.$_tlmn_job.$_tlmn_restart
if _tlmn_why=$({
    umask 077 && set -C && _tlmn_new "$_tlmn_base.src.task-prolog" "$_tlmn_prolog" &&
        chmod 700 "$_tlmn_base.src.task-prolog" &&
        { [ -z "$_tlmn_run" ] || { _tlmn_new "$_tlmn_base.src.run" "$_tlmn_run" &&
            sbcast "$_tlmn_base.src.run" "$_tlmn_base.run"; }; } &&
        exec sbcast "$_tlmn_base.src.task-prolog" "$_tlmn_base.task-prolog"
} 2>&1); then
    _tlmn_why=''
    [ -x "$_tlmn_base.task-prolog" ] || _tlmn_why='/tmp is mounted noexec, or is not the one that sbcast writes to'
else
    _tlmn_why=${_tlmn_why:-sbcast failed}
fi
# On every node and of every restart (one that Slurm killed for a requeue could not do it); then here, because a job
# that is being cancelled starts no step.
_tlmn_clean="$_tlmn_each sh -c 'rm -f /tmp/tl-multinode.$_tlmn_job.*' > /dev/null 2>&1 || :
rm -f $_tlmn_base.task-prolog $_tlmn_base.run $_tlmn_base.src.task-prolog $_tlmn_base.src.run 2> /dev/null || :"
if [ -n "$_tlmn_why" ]; then
    # A directory that all nodes share will do: often that of the submission, the working directory, or the home.
    # shellcheck disable=SC2016
    _tlmn_test='[ -x "$0" ] || { echo "$SLURMD_NODENAME cannot run a file in ${0%/*}"; exit 1; }'
    for _tlmn_dir in "${SLURM_SUBMIT_DIR:-$PWD}" "$PWD" "${HOME:-}" ''; do
        _tlmn_base=''
        case $_tlmn_dir in '') break ;; *\'*) continue ;; esac
        case $_tlmn_clean in *"'$_tlmn_dir/."*) continue ;; esac
        echo "tl-multinode: cannot copy the task prolog to /tmp of all nodes ($_tlmn_why); trying $_tlmn_dir" >&2
        _tlmn_base=$_tlmn_dir/.tl-multinode.$_tlmn_job.$_tlmn_restart
        _tlmn_clean="$_tlmn_clean
rm -f '$_tlmn_base.task-prolog' '$_tlmn_base.run' 2> /dev/null || :"
        if _tlmn_why=$({
            umask 077 && set -C && _tlmn_new "$_tlmn_base.task-prolog" "$_tlmn_prolog" &&
                chmod 700 "$_tlmn_base.task-prolog" && { [ -z "$_tlmn_run" ] || _tlmn_new "$_tlmn_base.run" "$_tlmn_run"; }
        } 2>&1); then
            _tlmn_why=$(eval "$_tlmn_each"' sh -c "$_tlmn_test" "$_tlmn_base.task-prolog"' 2> /dev/null) && break
        fi
        _tlmn_why=${_tlmn_why:-"srun failed"}
    done
fi
#@old_trap@
# shellcheck disable=SC2064
[ -z "$_tlmn_clean" ] || trap "$_tlmn_clean" EXIT
if [ -n "$_tlmn_base" ]; then
    export SLURM_TASK_PROLOG="$_tlmn_base.task-prolog"
else
    echo "tl-multinode: $_tlmn_why: @NO_PLACE@" >&2
    #@no_place@
fi
unset _tlmn_prolog _tlmn_run _tlmn_next _tlmn_each _tlmn_why _tlmn_base _tlmn_dir _tlmn_test _tlmn_clean
