"""Rules about how the program is started on the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .finding import Hit, rule
from .layout import srun_layout, tasks_per_node
from .options import MPIRUN, option, read_options
from .programs import PYTHON, REMOTE_SHELLS, STARTERS, python_target, start_of

if TYPE_CHECKING:
    from .commands import Command
    from .subject import Subject

# Any of these in the text may start something on the other nodes, in a way that the walk does not see.
WORDS = sorted(STARTERS - {"parallel", "flux", "ray", "dask"})  # the rest are words of many other meanings
MENTIONS = re.compile(r"\b(" + "|".join(map(re.escape, WORDS)) + r")\b")
FORWARDS = frozenset({"x", "genv", "genvall", "genvlist", "env", "envall", "envlist", "export", "launcher_agent"})
HYDRA = frozenset({"ppn", "perhost", "bootstrap", "hosts", "f", "rmk", "iface", "envnone", "genvnone"})
# Frameworks in which one process drives all GPUs of its node, without WORLD_SIZE.
ONE_PROCESS_A_NODE = re.compile(r"jax|xla|tensorflow|TF_CONFIG|keras|vllm|sglang", re.IGNORECASE)
OTHER_MPI = re.compile(r"intel-?mpi|impi|mpich|mvapich|hydra|OMPI_MCA|oneapi|I_MPI_|PMIX_MCA|PRTE_MCA", re.IGNORECASE)


@rule("MN103", "warning", "Nothing starts the program on the other nodes")
def no_launcher(subject: Subject) -> Iterator[Hit]:
    """A SLURM script runs on the first node only; srun or mpirun carries the program to the rest."""
    script = subject.script
    if not (subject.multi and subject.batch) or script.has_errors or MENTIONS.search(script.code_text()):
        return
    if any(command.name in STARTERS or _hides_something(command) for command in script.commands):
        return
    programs = [*subject.plain_python, *(command for command, _ in subject.starts)]
    for command in sorted(programs, key=lambda item: item.offset)[:1]:
        text = " ".join(word.source for word in command.words[:4])
        yield Hit(
            command.offset,
            text,
            f"the script runs on the first of {subject.nodes} nodes only: the others stay idle and are waited for",
            f"put srun in front: srun {text}" + (" ..." if len(command.words) > 4 else ""),
        )


def _hides_something(command: Command) -> bool:
    """A script or a program from a variable: it may well call srun."""
    first = command.words[0]
    if command.name in ("bash", "sh", "zsh", "dash", "make") or command.name.endswith((".sh", ".sbatch")):
        return len(command.words) > 1 and not any(word.text.startswith("-c") for word in command.words[1:2])
    return bool(first.expansions) and first.literal is None


@rule("MN104", "error", "Several torchrun on one node")
def torchrun_per_task(subject: Subject) -> Iterator[Hit]:
    """torchrun starts one process per GPU itself; one torchrun per task multiplies them."""
    if not (subject.multi and subject.batch):
        return
    for command, start in subject.starts:
        srun = command.launcher
        if start.kind != "torchrun" or srun is None or srun.name != "srun" or command.conditional:
            continue
        count = tasks_per_node(srun_layout(srun), subject.job, subject.nodes)
        processes, nodes = option(start.options, "nproc_per_node"), option(start.options, "nnodes")
        if count is None or count < 2 or processes is None or processes.value is None or subject.is_sub_step(srun):
            continue
        if processes.value.literal == "1" or (nodes and nodes.value and "NTASKS" in nodes.value.text):
            continue  # one agent a process, by intention
        yield Hit(
            srun.offset,
            f"{count} tasks per node, each with {processes.word.source}",
            f"each of the {count} tasks of a node starts its own set of workers, and they fight for ports and GPUs",
            "start one torchrun a node: srun --ntasks-per-node=1 torchrun ...",
        )


@rule("MN109", "error", "srun in a script that already runs on every node")
def srun_on_every_node(subject: Subject) -> Iterator[Hit]:
    """A SkyPilot run, or a task with ``launch: per-node``, is one process a node already."""
    if not (subject.multi and subject.every_node):
        return
    for command in subject.script.commands:
        if command.name == "srun" and not command.conditional and not command.scope.substitution:
            text = " ".join(word.source for word in command.words[:3])
            where = "a SkyPilot run" if subject.sky else "a script with launch: per-node"
            yield Hit(
                command.offset,
                text,
                f"{where} runs on every node already: srun fails there, or starts the program once more for each node",
                "remove srun and its options; start the program directly",
            )


@rule("MN118", "warning", "mpirun forwards no variable")
def mpirun_forwards_nothing(subject: Subject) -> Iterator[Hit]:
    """Open MPI gives remote processes only what ``-x`` names."""
    if not subject.multi or OTHER_MPI.search(subject.script.code_text()) or any(map(OTHER_MPI.search, subject.env)):
        return
    for command in subject.script.commands:
        if command.name not in ("mpirun", "mpiexec", "orterun") or command.scope.launcher is not None:
            continue
        options, rest = read_options(command.words[1:], MPIRUN)
        names = {item.name for item in options}
        only = option(options, "np", "n", "c")
        single = only is not None and only.value is not None and only.value.literal == "1"
        if names & FORWARDS or names & HYDRA or single or not rest or "mca_base_env_list" in command_text(command):
            continue
        target = python_target(rest)[0] if PYTHON.match(rest[0].text.rsplit("/", 1)[-1]) else "-c"
        if target.startswith(("-c", "-m mpi4py")) or target == "":
            continue  # needs none of the six, or cannot be seen
        yield Hit(
            command.offset,
            " ".join(word.source for word in command.words[:3]),
            "Open MPI passes no variable to other nodes unless it is named: MASTER_ADDR and the like are missing there",
            "name them: mpirun -x MASTER_ADDR -x MASTER_PORT -x WORLD_SIZE ..., or mpirun ... shared-env exec -- ...",
        )


def command_text(command: Command) -> str:
    """All words of a command."""
    return " ".join(word.text for word in command.words)


@rule("MN122", "error", "torchrun --standalone on several nodes")
def standalone(subject: Subject) -> Iterator[Hit]:
    """``--standalone`` is a rendezvous of one node with itself."""
    if not subject.multi:
        return
    launched = any(command.name in STARTERS for command in subject.script.commands)
    for command, start in subject.starts:
        item = option(start.options, "standalone")
        here = subject.everywhere(command.launcher) if launched or not subject.batch else True
        if start.kind == "torchrun" and item is not None and here and not command.conditional:
            yield Hit(
                item.word.offset,
                item.word.source,
                f"each of the {subject.nodes} nodes trains alone and believes it is the whole job",
                'replace it by --nnodes="$SLURM_NNODES" --rdzv_backend=c10d --rdzv_id="$SLURM_JOB_ID" '
                '--rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT"'
                if subject.batch
                else f'replace it by --nnodes={subject.nodes} --node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" '
                '--master_port="$MASTER_PORT"',
            )


@rule("MN123", "error", "Several nodes on a provider without multi-node support")
def unsupported_provider(subject: Subject) -> Iterator[Hit]:
    """Only slurm and skypilot start a task on several nodes."""
    provider = subject.task.provider
    if subject.multi and provider not in (None, "", "slurm", "skypilot"):
        yield Hit(
            0,
            f"num_nodes: {subject.nodes}",
            f"{provider} gives single machines: num_nodes = {subject.nodes} cannot be had there",
            "set num_nodes: 1, or provider: skypilot (or slurm)",
            "resources.num_nodes",
        )


@rule("MN124", "warning", "One plain process per node, WORLD_SIZE for one per GPU")
def plain_process_per_node(subject: Subject) -> Iterator[Hit]:
    """On SkyPilot WORLD_SIZE counts GPUs, while the script starts one process a node."""
    gpus = subject.gpus or 0
    script = subject.script
    if not (subject.multi and subject.sky) or gpus < 2 or script.has_errors or "WORLD_SIZE" in subject.env:
        return
    others = STARTERS - REMOTE_SHELLS
    if (
        script.assigned("WORLD_SIZE")
        or ONE_PROCESS_A_NODE.search(script.code_text())
        or any(
            command.name in others or start_of(command.words) or _hides_something(command)
            for command in script.commands
        )
    ):
        return
    programs = [command for command in subject.plain_python if not command.conditional]
    for command in programs[:1]:
        text = " ".join(word.source for word in command.words[:3])
        yield Hit(
            command.offset,
            text,
            f"WORLD_SIZE announces {subject.nodes} x {gpus} processes, but one a node starts: the group never forms",
            f'start one process per GPU: torchrun --nnodes="$SKYPILOT_NUM_NODES" --nproc_per_node="{gpus}" '
            '--node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" '
            + " ".join(word.source for word in command.words[1:4]),
        )
