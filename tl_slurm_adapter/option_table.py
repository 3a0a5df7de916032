"""The options of sbatch, one row each: what it is called here, in getopt, in pyslurm and in slurmrestd.

Names, short letters and kinds of argument are those that sbatch 22.05.8, 24.11.5 and 26.05.5 accept (sbatch(1) leaves
a few out); where releases differ, the row is the wider one. pyslurm names are attributes of JobSubmitDescription
(25.11), REST names are fields of job_desc_msg in v0.0.40 (Slurm 23.11). None: that way cannot express the option.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["none", "required", "optional"]


class Spec(NamedTuple):
    """One option: getopt's view of it, and its name in the two programming interfaces.

    pyslurm holds alternatives: the attribute was renamed between releases, so take the first that the class has.
    refused is the reason, and what to do instead, for an option that must not stand in a task's flags.
    """

    name: str
    short: str | None
    kind: Kind
    pyslurm: tuple[str, ...] | None = None
    rest: str | None = None
    refused: str | None = None


def _takes(kind: Kind, name: str, pyslurm: str | None, rest: str | None, short: str | None = None) -> Spec:
    return Spec(name, short, kind, tuple(pyslurm.split("|")) if pyslurm else None, rest)


def _flag(name: str, pyslurm: str | None, rest: str | None, short: str | None = None) -> Spec:
    return _takes("none", name, pyslurm, rest, short)


def _value(name: str, pyslurm: str | None, rest: str | None, short: str | None = None) -> Spec:
    return _takes("required", name, pyslurm, rest, short)


def _maybe(name: str, pyslurm: str | None, rest: str | None, short: str | None = None) -> Spec:
    return _takes("optional", name, pyslurm, rest, short)


def _no(name: str, short: str | None, kind: Kind, reason: str) -> Spec:
    return Spec(name, short, kind, refused=reason)


_CLIENT: Final = "it only changes what the sbatch command prints; leave it out"

_ROWS: Final = (
    _value("account", "account", "account", "A"),
    _value("acctg-freq", "accounting_gather_frequency", "account_gather_frequency"),
    _value("array", "array", "array", "a"),
    _no("autocomplete", None, "required", "it only helps shells to complete a command line; leave it out"),
    _value("batch", "batch_constraints", "batch_features"),
    _value("bb", None, "burst_buffer"),
    _value("bbf", None, None),  # the client reads the file
    _value("begin", "begin_time", "begin_time", "b"),
    _value("chdir", "working_directory", "current_working_directory", "D"),
    _value("cluster-constraint", "cluster_constraints", "cluster_constraint"),
    _value("clusters", None, None, "M"),  # the client chooses the cluster before it submits
    _value("comment", "comment", "comment"),
    _flag("consolidate-segments", None, None),
    _value("constraint", "constraints", "constraints", "C"),
    _value("container", "container", "container"),
    _value("container-id", "container_id", "container_id"),
    _value("container-type", "container_type", None),
    _value("context", "selinux_context", "selinux_context"),
    _flag("contiguous", "requires_contiguous_nodes", "contiguous"),
    _value("core-spec", "cores_reserved_for_system", "core_specification", "S"),
    _value("cores-per-socket", "cores_per_socket", None),
    _value("cpu-freq", None, "cpu_frequency"),  # pyslurm 25.11 takes the words for governors
    _value("cpus-per-gpu", None, "cpus_per_tres"),  # pyslurm 25.11 puts one CPU a task beside it
    _value("cpus-per-task", "cpus_per_task", "cpus_per_task", "c"),
    _value("deadline", "deadline", "deadline"),
    _value("delay-boot", "delay_boot_time", "delay_boot"),
    _value("dependency", "dependencies", "dependency", "d"),
    _value("distribution", "distribution", "distribution", "m"),
    _value("error", "standard_error", "standard_error", "e"),
    _value("exclude", "excluded_nodes", "excluded_nodes", "x"),
    _maybe("exclusive", "resource_sharing", "shared"),
    _value("export", "environment", "environment"),
    _value("export-file", None, None),  # the client reads the file
    _no("external", None, "none", "an external job runs no script; submit it with sbatch itself"),
    _value("extra", "extra", "extra"),
    _value("extra-node-info", None, None, "B"),
    _maybe("get-user-env", "get_user_environment", None),
    _no("gid", None, "required", "a job runs as the user who submits it; submit it as that user"),
    _value("gpu-bind", None, "tres_bind"),  # pyslurm 25.11 sends it without the name of the resource
    _value("gpu-freq", None, "tres_freq"),
    _value("gpus", "gpus", "tres_per_job", "G"),
    _value("gpus-per-node", "gres_per_node", "tres_per_node"),
    _value("gpus-per-socket", "gpus_per_socket", "tres_per_socket"),
    _value("gpus-per-task", "gpus_per_task", "tres_per_task"),
    _value("gres", "gres_per_node", "tres_per_node"),
    _value("gres-flags", "gres_binding", "flags"),
    _no("help", "h", "none", "it submits nothing; leave it out"),
    _value("hint", None, None),
    _flag("hold", "priority", "priority", "H"),  # as priority 0
    _no("ignore-pbs", None, "none", "it is about #PBS lines, which are never read here; leave it out"),
    _value("input", "standard_in", "standard_input", "i"),
    _value("job-name", "name", "name", "J"),
    _value("kill-on-invalid-dep", "kill_on_invalid_dependency", "flags"),
    _value("licenses", "licenses", "licenses", "L"),
    _value("mail-type", "mail_types", "mail_type"),
    _value("mail-user", "mail_user", "mail_user"),
    _value("mcs-label", "mcs_label", "mcs_label"),
    _value("mem", "memory_per_node", "memory_per_node"),
    _value("mem-bind", None, "memory_binding"),
    _value("mem-per-cpu", "memory_per_cpu", "memory_per_cpu"),
    _value("mem-per-gpu", "memory_per_gpu", "memory_per_tres"),
    _value("mem-update", None, None),
    _value("mincpus", None, "minimum_cpus_per_node"),  # pyslurm's min_cpus_per_node sets the job's total
    _value("network", "network", "network"),
    _maybe("nice", "nice", "nice"),
    _maybe("no-kill", "kill_on_node_fail", "kill_on_node_fail", "k"),
    _flag("no-requeue", "is_requeueable", "requeue"),
    _value("nodefile", None, None, "F"),  # the client reads the file
    _value("nodelist", "required_nodes", "required_nodes", "w"),
    _value("nodes", "nodes", "nodes", "N"),
    _value("ntasks", "ntasks", "tasks", "n"),
    _value("ntasks-per-core", "ntasks_per_core", "tasks_per_core"),
    _value("ntasks-per-gpu", None, "ntasks_per_tres"),  # pyslurm refuses its ntasks_per_gpu beside nodes
    _value("ntasks-per-node", "ntasks_per_node", "tasks_per_node"),
    _value("ntasks-per-socket", "ntasks_per_socket", "tasks_per_socket"),
    _value("ntasks-per-tres", None, "ntasks_per_tres"),
    _maybe("oom-kill-step", None, None),
    _value("open-mode", "log_files_open_mode", "open_mode"),
    _value("output", "standard_output", "standard_output", "o"),
    _flag("overcommit", "overcommit", "overcommit", "O"),
    _flag("oversubscribe", "resource_sharing", "shared", "s"),
    _no("parsable", None, "none", _CLIENT),
    _value("partition", "partitions|partition", "partition", "p"),
    _value("power", "power_options", "power_flags"),
    _value("prefer", None, "prefer"),
    _value("priority", "priority", "priority"),
    _value("profile", "profile_types", "profile"),
    _maybe("propagate", None, None),
    _value("qos", "qos", "qos", "q"),
    _no("quiet", "Q", "none", _CLIENT),
    _flag("reboot", "requires_node_reboot", "reboot"),
    _maybe("requeue", "is_requeueable", "requeue"),
    _value("reservation", "reservations", "reservation"),
    _value("resources", None, None),
    _maybe("resv-ports", None, None),  # the client checks how the cluster is configured
    _value("segment", "segment_size", None),
    _value("signal", "signal", "kill_warning_signal"),
    _value("sockets-per-node", "sockets_per_node", "sockets_per_node"),
    _flag("spread-job", "spreads_over_nodes", "flags"),
    _flag("spread-segments", None, None),
    _flag("stepmgr", None, None),
    _value("switches", None, "required_switches"),  # pyslurm 25.11 fails on its own switches attribute
    _no("test-only", None, "none", "it submits nothing; use `tl-slurm submit --test-only`"),
    _value("thread-spec", "threads_reserved_for_system", "thread_specification"),
    _value("threads-per-core", "threads_per_core", "threads_per_core"),
    _value("time", "time_limit", "time_limit", "t"),
    _value("time-min", "time_limit_min", "time_minimum"),
    _value("tmp", "temporary_disk_per_node", "temporary_disk_per_node"),
    _value("tres-bind", None, "tres_bind"),
    _value("tres-per-task", None, "tres_per_task"),
    _no("uid", None, "required", "a job runs as the user who submits it; submit it as that user"),
    _no("usage", None, "none", "it submits nothing; leave it out"),
    _flag("use-min-nodes", "use_min_nodes", "flags"),
    _no("verbose", "v", "none", _CLIENT),
    _no("version", "V", "none", "it submits nothing; leave it out"),
    _no("wait", "W", "none", "it makes the sbatch command wait for the job; use `tl-slurm wait` or `submit --follow`"),
    _value("wait-all-nodes", "wait_all_nodes", "wait_all_nodes"),
    _value("wckey", "wckey", "wckey"),
    _no("wrap", None, "required", "it would replace the script; put the command into `script`"),
)

TABLE: Final = {spec.name: spec for spec in _ROWS}
SHORT: Final = {spec.short: spec for spec in _ROWS if spec.short}
ALIASES: Final = {"cluster": "clusters", "tasks-per-node": "ntasks-per-node"}

#: Options of older releases, and what to write instead.
RENAMED: Final = {
    "workdir": "it is called --chdir",
    "share": "it is called --oversubscribe",
    "nprocs": "it is called --ntasks",
    "minsockets": "it is called --sockets-per-node",
    "mincores": "it is called --cores-per-socket",
    "minthreads": "it is called --threads-per-core",
    "checkpoint": "it was removed; let the program write its own checkpoints",
    "checkpoint-dir": "it was removed; let the program write its own checkpoints",
    "jobid": "it was removed; Slurm chooses the job id",
    "immediate": "sbatch has none; use --deadline or srun",
}

#: Options of srun that are often tried with sbatch, where the nearest sbatch name would mislead.
SRUN_ONLY: Final = frozenset(
    ("cpu-bind", "exact", "kill-on-bad-exit", "label", "mpi", "multi-prog", "overlap", "pty", "task-prolog", "x11")
)


def find_long(name: str) -> list[str]:
    """Long names that NAME can stand for, by getopt_long(3): the exact one alone, else all that it begins.

    >>> find_long("nodes"), find_long("nod"), find_long("tasks-per")
    (['nodes'], ['nodefile', 'nodelist', 'nodes'], ['ntasks-per-node'])
    """
    if name in TABLE:
        return [name]
    if name in ALIASES:
        return [ALIASES[name]]
    spellings = {**{known: known for known in TABLE}, **ALIASES}
    return sorted({known for spelling, known in spellings.items() if spelling.startswith(name)})
