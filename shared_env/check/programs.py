"""Which program a command starts in the end: behind ``time``, ``env A=b``, ``exec``, a container, ``python -m``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .options import ACCELERATE, DEEPSPEED, TORCHRUN, Option, option, read_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .shell_syntax import Word

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
MPI_STARTERS = frozenset({"mpirun", "mpiexec", "orterun", "mpiexec.hydra", "mpirun_rsh", "prterun", "prun"})
REMOTE_SHELLS = frozenset({"ssh", "pdsh", "clush", "parallel-ssh", "pssh", "parallel"})
# Programs that reach the other nodes by themselves.
OTHER_STARTERS = frozenset(
    {"horovodrun", "deepspeed", "ibrun", "aprun", "jsrun", "flux", "charmrun", "ray", "dask", "ds"}
)
STARTERS = MPI_STARTERS | REMOTE_SHELLS | OTHER_STARTERS | {"srun"}

# Programs that start the program after their own options; the text lists the short options that take a value.
PREFIXES = {
    "time": "fo", "exec": "a", "command": "", "builtin": "", "nohup": "", "nice": "n", "ionice": "cn", "setsid": "",
    "stdbuf": "ioe", "numactl": "NmCplPi", "catchsegv": "", "unbuffer": "", "sudo": "ugp", "strace": "eop",
}  # fmt: skip
ONE_ARGUMENT = {"timeout": "ks", "taskset": "", "chrt": "", "flock": "w"}
# Programs with too many options to list: the inner program is the first word that names a known one.
CONTAINERS = frozenset(
    {"apptainer", "singularity", "shifter", "docker", "podman", "podman-hpc", "enroot", "conda", "mamba", "micromamba",
     "uv", "poetry", "pipenv", "nsys", "ncu", "rocprof", "perf", "xvfb-run", "shared-env"}
)  # fmt: skip
KNOWN_INNER = re.compile(r"(torchrun|accelerate|deepspeed|(ba|da|z)?sh|python[0-9.]*|ray|srun|mpirun|mpiexec)\Z")
PYTHON = re.compile(r"python[0-9.]*\Z")
TORCH_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher"})


@dataclass(frozen=True)
class Start:
    """A program that starts worker processes on its node: its ``kind``, its options, the script and its arguments."""

    kind: str  # 'torchrun', 'accelerate', 'deepspeed'
    options: list[Option]
    rest: list[Word]

    @property
    def node_rank(self) -> Option | None:
        """The option that says which node this is."""
        return option(self.options, "machine_rank" if self.kind == "accelerate" else "node_rank")

    @property
    def is_dynamic(self) -> bool:
        """The rendezvous gives out the ranks itself (c10d, etcd) and ignores the node rank."""
        backend = option(self.options, "rdzv_backend")
        return backend is not None and backend.value is not None and backend.value.literal != "static"


def program_name(word: Word) -> str:
    """The name of a program without its directory; empty when a variable hides it."""
    text = word.text if word.pieces and word.pieces[-1].kind == "text" else ""
    return text.rsplit("/", 1)[-1]


def inner_program(words: Sequence[Word]) -> list[Word] | None:
    """What a prefix program starts, else None."""
    name = program_name(words[0])
    if name == "env":
        return _behind_env(words)
    if name in PREFIXES:
        return _behind_options(words, PREFIXES[name])
    if name in ONE_ARGUMENT:
        return _behind_options(words, ONE_ARGUMENT[name])[1:]
    if name in CONTAINERS or words[0].is_opaque or name.endswith(".sh"):
        for index, word in enumerate(words[1:], 1):
            if word.literal is not None and KNOWN_INNER.match(program_name(word)):
                return list(words[index:])
    return None


def _behind_options(words: Sequence[Word], with_value: str) -> list[Word]:
    index = 1
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        index += 1
        if text == "--":
            break
        if len(text) == 2 and text[1] in with_value:
            index += 1
    return list(words[index:])


def _behind_env(words: Sequence[Word]) -> list[Word]:
    index = 1
    while index < len(words):
        text = words[index].text
        if text in ("-u", "--unset", "-C", "--chdir"):
            index += 1
        elif not text.startswith("-") and not re.match(r"[A-Za-z_]\w*=", text):
            break
        index += 1
    return list(words[index:])


def env_assignments(words: Sequence[Word]) -> list[tuple[str, Word]]:
    """The ``A=b`` words of ``env A=b program``."""
    found = []
    for word in words[1 : len(words) - len(_behind_env(words))]:
        head = word.pieces[0].text if word.pieces and word.pieces[0].kind == "text" else ""
        if re.match(r"[A-Za-z_]\w*=", head):
            found.append((head.split("=", 1)[0], word.after(head.index("=") + 1)))
    return found


def shell_body(words: Sequence[Word]) -> Word | None:
    """The text after ``-c`` of ``bash -lc 'text'``; None without ``-c``."""
    has_c, index = False, 1
    while index < len(words) and words[index].text[:1] in ("-", "+") and words[index].text not in ("-", "--"):
        text = words[index].text
        has_c = has_c or (not text.startswith("--") and "c" in text[1:])
        takes_value = text in ("--rcfile", "--init-file") or (not text.startswith("--") and text[-1] in "oO")
        index += 2 if takes_value else 1
    if index < len(words) and words[index].text == "--":
        index += 1
    return words[index] if has_c and index < len(words) else None


def script_argument(words: Sequence[Word]) -> Word | None:
    """The file that ``bash [options] FILE`` runs; None when it reads standard input."""
    rest = [word for word in words[1:] if not word.text.startswith("-")]
    return rest[0] if rest else None


def python_target(words: Sequence[Word]) -> tuple[str, list[Word]]:
    """('-m module' | 'file' | '-c' | '', the words after it) of a python command."""
    index = 1
    while index < len(words):
        text = words[index].text
        if text == "-m" and index + 1 < len(words):
            return f"-m {words[index + 1].text}", list(words[index + 2 :])
        if text == "-c" or not text.startswith("-"):
            return text, list(words[index + 1 :])
        index += 2 if text in ("-X", "-W") else 1
    return "", []


def start_of(words: Sequence[Word]) -> Start | None:
    """How ``words`` start worker processes, if they are torchrun, accelerate launch or deepspeed in any spelling."""
    name = program_name(words[0])
    rest = list(words[1:])
    if PYTHON.match(name):
        target, rest = python_target(words)
        name = {"-m accelerate.commands.launch": "accelerate-launch", "-m deepspeed": "deepspeed"}.get(
            target, target.rsplit("/", 1)[-1]
        )
        if target.removeprefix("-m ") in TORCH_MODULES:
            name = "torchrun"
        if target == "-m deepspeed.launcher.runner":
            name = "deepspeed"
    if name == "accelerate" and rest and rest[0].literal == "launch":
        name, rest = "accelerate-launch", rest[1:]
    kinds = {"torchrun": TORCHRUN, "accelerate-launch": ACCELERATE, "deepspeed": DEEPSPEED}
    if name not in kinds:
        return None
    options, rest = read_options(rest, kinds[name])
    return Start(name.removesuffix("-launch"), options, rest)
