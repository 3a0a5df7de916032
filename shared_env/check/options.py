"""Options of the programs that start other programs: srun, sbatch, mpirun, torchrun and its relatives."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .shell_syntax import Word


@dataclass(frozen=True)
class Option:
    """``name`` without dashes, ``-`` as ``_``; ``value`` is None for a flag; ``word`` is where it is written."""

    name: str
    value: Word | None
    word: Word


OPTIONS_NAME = re.compile(r"ARG|OPT|FLAG|PARAM|CONF", re.IGNORECASE)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Grammar:
    """How a program reads its options.

    ``flags`` are the long options without a value (all others take one); ``short`` maps the short options that take
    a value to their long names; ``attached`` are short options whose value, if any, is in the same word.
    ``two`` are options followed by two values.
    """

    flags: frozenset[str]
    short: dict[str, str] = field(default_factory=dict)
    attached: frozenset[str] = frozenset()
    two: frozenset[str] = frozenset()
    clusters: bool = True  # '-N2' is '-N 2'; False: '-np' is one name, as mpirun and argparse read it


# man srun, man sbatch: both read the same words; what only one of them knows does no harm in the table.
SLURM = Grammar(
    flags=_names(
        "contiguous disable_status exact exclusive external_launcher get_user_env help hold ignore_pbs immediate "
        "interactive kill_on_bad_exit label multi_prog nice no_allocate no_kill no_requeue overcommit overlap "
        "oversubscribe parsable preserve_env propagate pty quiet quit_on_interrupt reboot requeue resv_ports "
        "send_libs share spread_job test_only unbuffered usage use_min_nodes verbose version wait_all_nodes whole "
        "bcast compress"
    ),
    short={
        "A": "account", "a": "array", "B": "extra_node_info", "b": "begin", "C": "constraint", "c": "cpus_per_task",
        "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "i": "input", "J": "job_name",
        "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks", "o": "output",
        "p": "partition", "q": "qos", "r": "relative", "S": "core_spec", "T": "threads", "t": "time", "U": "uid",
        "W": "wait", "w": "nodelist", "x": "exclude",
    },
    attached=frozenset("IkK"),
)  # fmt: skip
SLURM_ALIASES = {"tasks_per_node": "ntasks_per_node", "time_limit": "time", "dir": "chdir"}

MPIRUN = Grammar(
    flags=_names(
        "allow_run_as_root bind_to_core bind_to_none bynode byslot bycore bysocket d display_allocation display_map "
        "do_not_launch envall envnone forward_signals genvall genvnone help h i l nolocal oversubscribe "
        "nooversubscribe q quiet report_bindings report_pid s tag_output timestamp_output use_hwthread_cpus v V "
        "verbose version xterm enable_recovery continuous display"
    ),
    two=frozenset({"mca", "gmca", "pmca", "genv", "env", "omca", "prtemca"}),
    clusters=False,
)
SSH = Grammar(flags=_names("4 6 A a C f G g K k M N n q s T t V v X x Y y"), clusters=False)
TORCHRUN = Grammar(
    flags=_names("standalone module m no_python run_path help h use_env virtual_local_rank"),
    clusters=False,
)
ACCELERATE = Grammar(
    flags=_names(
        "cpu multi_gpu tpu quiet q module m no_python debug help h use_deepspeed use_fsdp use_megatron_lm use_xpu ipex "
        "tpu_cluster no_tpu_cluster tpu_use_cluster tpu_use_sudo enable_cpu_affinity use_parallelism_config"
    ),
    clusters=False,
)
DEEPSPEED = Grammar(
    flags=_names(
        "module no_python no_local_rank no_ssh_check no_ssh force_multi save_pid enable_each_rank_log elastic_training "
        "bind_cores_to_rank help h"
    ),
    clusters=False,
)


def read_options(words: Sequence[Word], grammar: Grammar) -> tuple[list[Option], list[Word]]:
    """The options that ``words`` begin with, and what follows them: the program and its own arguments."""
    options: list[Option] = []
    index = 0
    while index < len(words):
        word = words[index]
        text = word.text
        if word.is_opaque and OPTIONS_NAME.search(word.pieces[0].name):
            index += 1  # options that are not known here
            continue
        if text == "--":
            return options, list(words[index + 1 :])
        if not text.startswith("-") or text == "-":
            break
        option, used = _read(words, index, grammar)
        options.append(option)
        index += used
    return options, list(words[index:])


def _read(words: Sequence[Word], index: int, grammar: Grammar) -> tuple[Option, int]:
    word = words[index]
    text = word.text
    long = text.startswith("--") or not grammar.clusters
    following = words[index + 1] if index + 1 < len(words) else None
    if long:
        dashes = 2 if text.startswith("--") else 1
        head = word.pieces[0].text  # the name is literal; an '=' inside an expansion is not ours
        name = head.split("=", 1)[0][dashes:].replace("-", "_")
        if "=" in head:
            return Option(name, word.after(head.index("=") + 1), word), 1
        if name in grammar.flags:
            return Option(name, None, word), 1
        return Option(name, following, word), 3 if name in grammar.two else 2
    letter = text[1]
    if letter in grammar.short:
        if len(text) > 2:
            return Option(grammar.short[letter], word.after(2), word), 1
        return Option(grammar.short[letter], following, word), 2
    return Option(letter, None, word), 1  # a flag; a cluster of flags ('-lu') counts as its first


def option(options: Sequence[Option], *names: str) -> Option | None:
    """The last option with one of ``names``: the last one wins in all of these programs."""
    return next((item for item in reversed(options) if SLURM_ALIASES.get(item.name, item.name) in names), None)


def number(found: Option | None) -> int | None:
    """The value of an option as a number, when it is one."""
    text = found.value.literal if found is not None and found.value is not None else None
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
