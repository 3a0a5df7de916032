"""Rules about numbers that must agree: nodes, processes, tasks, and the sbatch options that ask for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .finding import Hit, rule
from .layout import Layout, srun_layout, tasks_per_node
from .options import SLURM, Option, number, option
from .torchrun_trap import written

if TYPE_CHECKING:
    from .commands import Command
    from .programs import Start
    from .subject import Subject

# Old name -> what to write. Each was given to sbatch 22.05, which does not know it.
RENAMED = {
    "workdir": "--chdir", "share": "--oversubscribe", "mem_bind": "--mem-bind", "mincores": "--cores-per-socket",
    "minsockets": "--sockets-per-node", "minthreads": "--threads-per-core", "dir": "--chdir", "cwd": "--chdir",
    "walltime": "--time", "timelimit": "--time", "time-limit": "--time", "queue": "--partition",
}  # fmt: skip
REMOVED = frozenset(
    {"jobid", "checkpoint", "checkpoint-dir", "restart-dir", "geometry", "conn-type", "rotate", "no-rotate"}
    | {"blrts-image", "cnload-image", "linux-image", "mloader-image", "ramdisk-image", "launcher-opts", "numa"}
)
# Written with an underscore sbatch knows none of them; other names may belong to a plugin of the site.
UNDERSCORED = frozenset(
    {name for name in (*SLURM.flags, *SLURM.short.values()) if "_" in name}
    | {"ntasks_per_node", "gpus_per_node", "gpus_per_task", "cpus_per_gpu", "mem_per_cpu", "mem_per_gpu", "mail_type"}
    | {"mail_user", "ntasks_per_gpu", "ntasks_per_core", "ntasks_per_socket", "gpu_bind", "time_min", "open_mode"}
)
OF_SRUN = frozenset(
    {"label", "exact", "overlap", "mpi", "cpu-bind", "cpu_bind", "kill-on-bad-exit", "unbuffered", "pty", "multi-prog"}
    | {"task-prolog", "task-epilog", "accel-bind", "preserve-env"}
)


@rule("MN105", "error", "A hard-coded count contradicts num_nodes or accelerators")
def counts(subject: Subject) -> Iterator[Hit]:
    """The launcher waits for as many nodes and processes as it is told, not for as many as there are."""
    if not subject.multi:
        return
    for command, start in subject.starts:
        launcher = command.launcher
        if launcher is None or launcher.name == "srun":
            nodes = None if command.conditional else subject.expected_nodes(launcher)
            if nodes is not None:
                yield from _start_counts(subject, command, start, nodes)
    for item in subject.script.assigned("WORLD_SIZE"):
        text = item.word.literal if item.word is not None else None
        if text and text.isascii() and text.isdigit() and not item.scope.conditional and int(text) % subject.nodes:
            message = f"{text} processes cannot be spread over {subject.nodes} nodes: some are waited for in vain"
            yield Hit(item.offset, item.source, message, "leave WORLD_SIZE out: it is set for every process")


def _start_counts(subject: Subject, command: Command, start: Start, nodes: int) -> Iterator[Hit]:
    gpus = subject.gpus
    name = {"torchrun": "nnodes", "accelerate": "num_machines", "deepspeed": "num_nodes"}[start.kind]
    item = option(start.options, name)
    low, high = _range(item)
    step = srun_layout(command.launcher) if command.launcher is not None else Layout(())
    agents = (tasks_per_node(step, subject.job, subject.nodes) or nodes) * nodes if command.launcher else nodes
    right = {nodes, agents} | ({subject.nodes} if subject.is_sub_step(command.launcher) else set())
    if item is not None and low and not any(low <= count <= high for count in right):
        variable = "$SLURM_NNODES" if subject.slurm else "$SKYPILOT_NUM_NODES"
        message = f"the launcher waits for {low} nodes, the task has {nodes}"
        yield Hit(item.word.offset, written(item), message, f'write --{item.name}="{variable}"')
    if start.kind == "accelerate":
        yield from _accelerate_processes(subject, start, nodes)
        return
    item = option(start.options, "nproc_per_node" if start.kind == "torchrun" else "num_gpus")
    count = number(item)
    if item is None or count is None or gpus is None or count in (1, gpus) or step.gpus_per_node:
        return
    message = f"{count} processes a node, but the task asks for {gpus} GPUs a node: " + (
        "some processes have no GPU" if count > gpus else f"{gpus - count} of them stay idle"
    )
    fix = f"write --{item.name}={gpus}, or change accelerators"
    yield Hit(item.word.offset, written(item), message, fix, severity="" if count > gpus else "warning")


def _accelerate_processes(subject: Subject, start: Start, nodes: int) -> Iterator[Hit]:
    item = option(start.options, "num_processes")
    count, gpus = number(item), subject.gpus
    cpu = option(start.options, "cpu") is not None
    if item is None or count is None or cpu or (count % nodes == 0 if gpus is None else count in (gpus * nodes, nodes)):
        return
    total = gpus * nodes if gpus else nodes
    yield Hit(
        item.word.offset,
        written(item),
        f"accelerate counts the processes of all nodes: {count} is not {nodes} nodes x {gpus or 'processes'}",
        f"write --num_processes {total}",
    )


def _range(item: Option | None) -> tuple[int, int]:
    text = item.value.literal if item is not None and item.value is not None else None
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text or "")
    return (int(match[1]), int(match[2] or match[1])) if match else (0, 0)


@rule("MN117", "warning", "#SBATCH after the first command")
def late_directive(subject: Subject) -> Iterator[Hit]:
    """sbatch stops reading its options at the first line that is a command."""
    if not subject.slurm:
        return
    for key, script in (("script", subject.script), ("setup", subject.setup)):
        for comment in script.comments:
            column = script.lines.position(comment.offset)[1]
            late = key == "setup" or not comment.before_commands
            if late and column == 1 and re.match(r"#SBATCH\s+-", comment.text):
                message = "sbatch reads options only above the first command: this line is a comment"
                fix = "move it to the top of the script, or into custom_sbatch_flags"
                yield Hit(comment.offset, comment.text.rstrip(), message, fix, key)


@rule("MN120", "error", "A renamed or removed sbatch option")
def unknown_option(subject: Subject) -> Iterator[Hit]:
    """sbatch refuses the whole job for one option that it does not know."""
    for directive in subject.directives:
        name = directive.name
        if len(name) < 3:
            continue
        if name in RENAMED:
            fault, fix = "has another name now", f"write {RENAMED[name]}"
        elif name in REMOVED:
            fault, fix = "was removed", "remove it"
        elif name in OF_SRUN:
            fault, fix = "is an option of srun, not of sbatch", f"move it to the srun line: srun --{name} ..."
        elif "_" in name and name in UNDERSCORED:
            fault, fix = "is spelt with dashes", f"write --{name.replace('_', '-')}"
        else:
            continue
        word = directive.option.word
        yield Hit(word.offset, word.text, f"--{name} {fault}, and sbatch refuses the job", fix, directive.key)


@rule("MN121", "error", "The task layout contradicts num_nodes")
def contradicting_layout(subject: Subject) -> Iterator[Hit]:
    """Fewer tasks than nodes leave nodes empty; more nodes than there are never start."""
    if not (subject.multi and subject.slurm):
        return
    for directive in subject.directives:
        if directive.option.name in ("nodes", "ntasks"):
            fault = _job_fault(subject.job, subject.nodes, directive.option)
            if fault:
                word = directive.option.word
                fix = f"remove it: --nodes={subject.nodes} and one task a node are the default"
                yield Hit(word.offset, word.text, fault, fix, directive.key)
    for command in subject.script.commands:
        if command.name == "srun" and command.scope.launcher is None:
            step = srun_layout(command)
            fault = _step_fault(step, subject.nodes)
            if fault:
                text = " ".join(item.word.source for item in step.options if item.name in ("nodes", "ntasks"))
                fix = "leave --nodes and --ntasks to the job, or make them agree"
                yield Hit(command.offset, f"srun {text}", fault, fix)


def _job_fault(job: Layout, nodes: int, item: Option) -> str:
    if item.name == "nodes" and item is job.given("nodes"):
        low, high = job.nodes or (nodes, nodes)
        return "" if low <= nodes <= high else f"the flags ask for {low} nodes, num_nodes is {nodes}"
    if item.name == "ntasks" and item is job.given("ntasks"):
        tasks, each = job.number("ntasks"), job.number("ntasks_per_node")
        if tasks is not None and tasks < nodes:
            return f"--ntasks={tasks} leaves some of the {nodes} nodes without a task"
        if tasks is not None and each is not None and tasks > nodes * each:
            return f"{tasks} tasks do not fit on {nodes} nodes with {each} each"
    return ""


def _step_fault(step: Layout, nodes: int) -> str:
    wanted, tasks, each = step.nodes, step.number("ntasks"), step.number("ntasks_per_node")
    if wanted is not None and wanted[0] > nodes:
        return f"the step asks for {wanted[0]} nodes, the job has {nodes}: it never starts"
    if wanted is not None and tasks is not None and tasks < wanted[0]:
        return f"--ntasks={tasks} cannot fill {wanted[0]} nodes: srun cuts the step down"
    if tasks is not None and each is not None and tasks > each * (wanted[1] if wanted else nodes):
        return f"{tasks} tasks do not fit on {wanted[1] if wanted else nodes} nodes with {each} each"
    return ""
