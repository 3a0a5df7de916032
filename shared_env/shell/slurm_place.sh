# shellcheck shell=sh disable=SC2154
# srun runs the task prolog on the node of each task, so every node needs the file: sbcast copies it.
_tlmn_new() {
    # An executable file $1 that did not exist before (/tmp is everybody's), with the text $2.
    case $- in *C*) _tlmn_clobber=off ;; *) _tlmn_clobber=on && set -C ;; esac
    _tlmn_made=no
    # shellcheck disable=SC2188
    if { printf '' > "$1"; } 2> /dev/null && chmod 700 "$1" && printf '%s\n' "$2" >| "$1" && [ -x "$1" ]; then _tlmn_made=yes; fi
    case $_tlmn_clobber in on) set +C ;; esac
    unset _tlmn_clobber
    [ "$_tlmn_made" = yes ]
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
_tlmn_why=''
_tlmn_base=/tmp/tl-multinode.$_tlmn_job.$_tlmn_restart
for _tlmn_kind in task-prolog ${_tlmn_run:+run}; do
    case $_tlmn_kind in run) _tlmn_text=$_tlmn_run ;; *) _tlmn_text=$_tlmn_prolog ;; esac
    if ! _tlmn_new "$_tlmn_base.src.$_tlmn_kind" "$_tlmn_text"; then
        _tlmn_why="no executable file can be made in /tmp"
        break
    elif ! _tlmn_why=$(sbcast "$_tlmn_base.src.$_tlmn_kind" "$_tlmn_base.$_tlmn_kind" 2>&1); then
        _tlmn_why=${_tlmn_why:-"sbcast failed"}
        break
    fi
    _tlmn_why=''
done
_tlmn_clean="rm -f $_tlmn_base.src.task-prolog $_tlmn_base.src.run || :"
if [ -z "$_tlmn_why" ]; then
    # Of every restart: one that Slurm killed for a requeue could not do it.
    _tlmn_clean="$_tlmn_each sh -c 'rm -f /tmp/tl-multinode.$_tlmn_job.*' > /dev/null 2>&1 || :
$_tlmn_clean"
else
    # The submit directory is often on a file system that all nodes share: use it if they all see the file.
    _tlmn_base=${SLURM_SUBMIT_DIR:-$PWD}/.tl-multinode.$_tlmn_job.$_tlmn_restart
    echo "tl-multinode: cannot copy the task prolog to the nodes ($_tlmn_why); trying ${_tlmn_base%/*}" >&2
    case $_tlmn_base in
        *\'*) _tlmn_base='' ;;
        *)
            _tlmn_clean="$_tlmn_clean
rm -f '$_tlmn_base.task-prolog' '$_tlmn_base.run' || :"
            for _tlmn_kind in task-prolog ${_tlmn_run:+run}; do
                case $_tlmn_kind in run) _tlmn_text=$_tlmn_run ;; *) _tlmn_text=$_tlmn_prolog ;; esac
                [ -z "$_tlmn_base" ] || _tlmn_new "$_tlmn_base.$_tlmn_kind" "$_tlmn_text" || _tlmn_base=''
            done
            [ -z "$_tlmn_base" ] || eval "$_tlmn_each test -x '$_tlmn_base.task-prolog' > /dev/null 2>&1" || _tlmn_base=''
            ;;
    esac
fi
#@old_trap@
# shellcheck disable=SC2064
[ -z "$_tlmn_clean" ] || trap "$_tlmn_clean" EXIT
if [ -n "$_tlmn_base" ]; then
    export SLURM_TASK_PROLOG="$_tlmn_base.task-prolog"
else
    echo "tl-multinode: @NO_PLACE@" >&2
    #@no_place@
fi
unset _tlmn_prolog _tlmn_run _tlmn_next _tlmn_each _tlmn_why _tlmn_base _tlmn_kind _tlmn_text _tlmn_clean _tlmn_made
