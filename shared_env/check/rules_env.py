"""Rules about variables: names, values, and where they exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shared_env.credentials import MASK

from .finding import Hit, rule
from .layout import srun_layout, tasks_per_node
from .names import FAMILIES, GUESSES, SKYPILOT_RUN_ONLY, SKYPILOT_SETUP

if TYPE_CHECKING:
    from .commands import Command, Reference
    from .subject import Subject

LINE_TOOLS = frozenset({"head", "tail", "sed", "nl", "sort", "uniq", "paste", "mapfile", "readarray", "while"})
QUOTE_ENDS = re.compile(r"""(["'])(?:(?!\1).)+\1\Z""", re.DOTALL)
BRACED = re.compile(r"\$\{[A-Za-z_]\w*\}")
VARIABLE = re.compile(r"(S[A-Z]{3,8})_[A-Z0-9_]+\Z")


@rule("MN110", "error", "A variable of run, used in setup")
def run_variable_in_setup(subject: Subject) -> Iterator[Hit]:
    """SkyPilot sets these for run only; in setup they are empty."""
    for item in subject.setup.references if subject.sky else ():
        if item.name in SKYPILOT_RUN_ONLY and not item.operator and not item.tested:
            other = item.name.replace("SKYPILOT_", "SKYPILOT_SETUP_")
            fix = f"use ${other}" if other in SKYPILOT_SETUP else "move the line to script"
            yield Hit(item.offset, item.source, f"{item.name} is empty while setup runs", fix, "setup")


@rule("MN111", "warning", "A scheduler variable that does not exist here")
def unknown_variable(subject: Subject) -> Iterator[Hit]:
    """A misspelt name is an empty text, not an error."""
    given = set(subject.env) | set(subject.task.secrets)
    for key, script in (("script", subject.script), ("setup", subject.setup)):
        given |= {item.name for item in script.assignments}
        guarded = {family_of(item.name) for item in script.references if item.tested or item.operator}
        seen: set[str] = set()
        for item in script.references:
            if item.name in given | seen or item.operator or item.tested:
                continue
            fault = _name_fault(subject, item, guarded)
            if fault is not None:
                seen.add(item.name)
                yield Hit(item.offset, item.source, *fault, key)


def family_of(name: str) -> str:
    """'SLURM' or 'SKYPILOT' for a name that has, or nearly has, this prefix; else ''."""
    match = VARIABLE.match(name)
    near = difflib.get_close_matches(match[1], list(FAMILIES), 1, 0.8) if match else []
    return near[0] if near else ""


def _name_fault(subject: Subject, item: Reference, guarded: set[str]) -> tuple[str, str] | None:
    family = family_of(item.name)
    if not family:
        return None
    if item.name in FAMILIES[family]:
        other = (subject.slurm and family == "SKYPILOT") or (subject.sky and family == "SLURM")
        if not other or family in guarded:
            return None
        message = f"{item.name} is a variable of {'SkyPilot' if family == 'SKYPILOT' else 'SLURM'} and empty here"
        return message, "use one of MASTER_ADDR, MASTER_PORT, NODE_RANK, RANK, LOCAL_RANK, WORLD_SIZE: set on both"
    near = difflib.get_close_matches(item.name, sorted(FAMILIES[family]), 1, 0.85)
    near = [GUESSES[item.name]] if item.name in GUESSES else near
    if not near:
        return None
    return f"no scheduler sets {item.name}: it is empty", f"did you mean ${near[0]}?"


@rule("MN112", "error", "$SKYPILOT_NODE_IPS without quotes")
def unquoted_addresses(subject: Subject) -> Iterator[Hit]:
    """The list has one address a line; without quotes the shell joins the lines with blanks."""
    for key, script in (("script", subject.script), ("setup", subject.setup)):
        for command in script.commands:
            if command.name != "echo" or command.pipes_into is None or not _by_line(command.pipes_into):
                continue
            for word in command.words[1:]:
                names = [piece.name for piece in word.pieces if piece.kind == "variable" and not piece.quoted]
                if "SKYPILOT_NODE_IPS" in names or "SKYPILOT_SETUP_NODE_IPS" in names:
                    name = next(item for item in names if item.endswith("NODE_IPS"))
                    message = "without quotes all addresses become one line, and the line-wise program sees one entry"
                    yield Hit(word.offset, word.source, message, f'write "${name}"', key)


def _by_line(command: Command) -> bool:
    text = " ".join(word.text for word in command.words[1:])
    if command.name in ("wc", "grep"):
        return re.search(r"(^|\s)-\w*[lc]", text) is not None
    if command.name == "awk":
        return "NR" in text
    return command.name in LINE_TOOLS


@rule("MN115", "error", "LOCAL_RANK as device index while each task sees one GPU")
def device_index(subject: Subject) -> Iterator[Hit]:
    """With one visible GPU per task the only index is 0."""
    if not (subject.multi and subject.batch):
        return
    for command in subject.script.commands:
        srun = command.launcher
        if srun is None or srun.name != "srun":
            continue
        step = srun_layout(srun)
        said = step if step.given("gpus_per_task", "gpu_bind") is not None else subject.job
        if not said.one_gpu_per_task or tasks_per_node(step, subject.job, subject.nodes) == 1:
            continue
        for word in command.words:
            for before, piece in zip(word.pieces, word.pieces[1:], strict=False):
                local = {"LOCAL_RANK", "SLURM_LOCALID"}.intersection(piece.names)
                if before.kind == "text" and before.text.endswith("cuda:") and local:
                    message = "each task sees one GPU, whose index is 0: other tasks ask for a device that is not there"
                    yield Hit(word.offset, word.source, message, "use cuda:0, or remove --gpus-per-task / --gpu-bind")


@rule("MN116", "warning", "CUDA_VISIBLE_DEVICES is overwritten")
def device_mask(subject: Subject) -> Iterator[Hit]:
    """Slurm sets it to the GPUs of the job; another list names GPUs of other jobs, or hides the own ones."""
    if not (subject.multi and subject.slurm):
        return
    fix = "remove it: Slurm sets CUDA_VISIBLE_DEVICES to the GPUs of the job"
    message = "this replaces the list of GPUs that Slurm gave to the job, which may be other ones"
    value = subject.env.get("CUDA_VISIBLE_DEVICES", "")
    if re.match(r"\d", value):
        name = "CUDA_VISIBLE_DEVICES"
        yield Hit(0, f"{name}: {value}", message, fix, f"env.{name}")
    for item in subject.script.assigned("CUDA_VISIBLE_DEVICES"):
        text = item.word.literal if item.word is not None else None
        if text is not None and re.match(r"\d", text):
            yield Hit(item.offset, item.source, message, fix)


@rule("MN119", "warning", "An env value with literal quotes or ${...}")
def literal_value(subject: Subject) -> Iterator[Hit]:
    """Values of env are data: no shell removes quotes or puts in variables."""
    for name, value in subject.env.items():
        quoted, braced = QUOTE_ENDS.match(value), BRACED.search(value)
        if quoted:
            fault, fix = "the quotes are part of the value", f"write {name}: {value[1:-1]}"
        elif braced:
            fault = f"{braced[0]} is not expanded: the program sees it as it stands"
            fix = f'set it in script instead: export {name}="{value}"' if '"' not in value else "set it in script"
        else:
            continue
        if name in subject.task.credentials:
            value = MASK
            fault = "the quotes are part of the value" if quoted else "the ${...} in it is not expanded"
            fix = "remove the quotes" if quoted else "set it in script"
        yield Hit(0, f"{name}: {value}", fault, fix, f"env.{name}")
