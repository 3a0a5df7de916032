"""sbatch's grammar: tables, properties, and the real sbatch client as the judge."""

from __future__ import annotations

import re
import string
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from sbatch_words import header_options, sbatch_words

from tl_slurm_adapter.option_table import ALIASES, RENAMED, SHORT, TABLE, find_long
from tl_slurm_adapter.options import (
    Option,
    OptionError,
    check_num_nodes,
    effective,
    leading_directives,
    parse_flags,
    task_layout,
)
from tl_slurm_adapter.words import split_words

FLAGS_CASES = yaml.safe_load((Path(__file__).parent / "cases" / "flags.yaml").read_text())

# Options that sbatch got after 22.05, the release that the tests run.
NEWER = {"autocomplete", "consolidate-segments", "container-id", "container-type", "external", "extra", "mem-update"}
NEWER |= {"oom-kill-step", "resources", "resv-ports", "segment", "spread-segments", "stepmgr", "tres-bind"}
NEWER |= {"tres-per-task"}
# Values may hold anything but control characters and halves of surrogate pairs.
VALUES = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=40)
TRICKY = st.text("ab-=#'\"\\ :,N2 \u00a0é$`", max_size=30)


def flags(text: str | None) -> list[str]:
    return [option.flag for option in parse_flags(text)]


# --- words and names ----------------------------------------------------------

READ = [
    # the value: attached, behind a blank, behind an equals sign
    ("-n8", ["--ntasks=8"]),
    ("-n 8", ["--ntasks=8"]),
    ("--ntasks 8", ["--ntasks=8"]),
    ("--ntasks=8", ["--ntasks=8"]),
    ("-t01:30:00", ["--time=01:30:00"]),
    ("-C=x", ["--constraint==x"]),
    ("--comment=a=b", ["--comment=a=b"]),
    ("--comment=", ["--comment="]),
    ('--comment ""x', ["--comment=x"]),
    ("--comment -n2", ["--comment=-n2"]),
    ("-J -n2", ["--job-name=-n2"]),
    # several options, groups of letters
    ("-n 8 -N 2", ["--ntasks=8", "--nodes=2"]),
    ("--ntasks=8\t--nodes=2", ["--ntasks=8", "--nodes=2"]),
    ("-Hn2", ["--hold", "--ntasks=2"]),
    ("-sO -H", ["--oversubscribe", "--overcommit", "--hold"]),
    # optional values only attached
    ("-k -n2", ["--no-kill", "--ntasks=2"]),
    ("-koff", ["--no-kill=off"]),
    ("-kn2", ["--no-kill=n2"]),
    ("--exclusive -n2", ["--exclusive", "--ntasks=2"]),
    ("--exclusive=user", ["--exclusive=user"]),
    ("--exclusive=", ["--exclusive="]),
    ("--nice", ["--nice"]),
    ("--requeue=expedite", ["--requeue=expedite"]),
    # aliases and beginnings of names
    ("--tasks-per-node=4", ["--ntasks-per-node=4"]),
    ("--tasks=4", ["--ntasks-per-node=4"]),
    ("--cluster=a", ["--clusters=a"]),
    ("--part=gpu", ["--partition=gpu"]),
    ("--no-k", ["--no-kill"]),
    ("--mem=4G", ["--mem=4G"]),
    ("--time 5", ["--time=5"]),
    ("--time-m 5", ["--time-min=5"]),
    # quotes and backslashes
    ('--comment="two words"', ["--comment=two words"]),
    ("--comment='two words'", ["--comment=two words"]),
    ("'--comment=two words'", ["--comment=two words"]),
    ("--com''ment=x", ["--comment=x"]),
    ('--comment="a"b', ["--comment=ab"]),
    ('--comment="a"\'b"c\'', ['--comment=ab"c']),
    (r'--comment="a\"b"', ['--comment=a"b']),
    (r"--comment='a\'b'", ["--comment=a'b"]),
    (r'--comment="a\b"', ["--comment=ab"]),
    (r"--comment=a\\b", [r"--comment=a\b"]),
    (r"--comment=a\#b", ["--comment=a#b"]),
    ("--nodes=2 \\", ["--nodes=2"]),
    ('-J "packjob"', ["--job-name=packjob"]),
    ("--job-name=hetjob", ["--job-name=hetjob"]),
    ("--comment=' : '", ["--comment= : "]),
    ("--comment=a\u00a0b", ["--comment=a\u00a0b"]),
    # comments
    ("--time=5 # --nodes=2", ["--time=5"]),
    ("--time=5#--nodes=2", ["--time=5"]),
    ('--comment="issue#12"', ["--comment=issue#12"]),
    ("--time=5 #", ["--time=5"]),
    ("# --ntasks=16", []),
    ("##SBATCH --ntasks=16", []),
    ("# SBATCH --ntasks=16", []),
    # with the prefix
    ("#SBATCH --time=5", ["--time=5"]),
    ("  #SBATCH --time=5", ["--time=5"]),
    ("#SBATCH-n2", ["--ntasks=2"]),
    ("#SBATCH", []),
    ("#SBATCH # nothing", []),
    # lines
    ("", []),
    (None, []),
    (" \n\n\t\n", []),
    ("--time=5\r\n--nodes=2\r\n", ["--time=5", "--nodes=2"]),
    ("# mine\n\n--time=5\n#SBATCH -N2 -n4", ["--time=5", "--nodes=2", "--ntasks=4"]),
]


@pytest.mark.parametrize(("text", "expected"), READ)
def test_flags_are_read(text: str | None, expected: list[str]) -> None:
    assert flags(text) == expected


REFUSED = [
    ("--time=01:00:00   (one hour)", "(one hour)"),
    ("nodes=2", "'nodes=2' is no option"),
    ("-N2 junk -n3", "'junk' is no option"),
    ("-", "'-' is no option"),
    ("--", "'--' is no option"),
    ("#SBATCHx -n2", "'x' is no option"),
    ("#SBATCH=-n2", "'=-n2' is no option"),
    ("--exclusive user", "'user' is no option"),
    ("-k off", "'off' is no option"),
    # names
    ("--nod=2", "--nodefile, --nodelist, --nodes"),
    ("--ntasks-per=2", "--ntasks-per-core, --ntasks-per-gpu, --ntasks-per-node"),
    ("--gpu=2", "ambiguous"),
    ("--clus=a", "--cluster-constraint, --clusters"),
    ("--=2", "ambiguous"),
    ("--ntask-per-node=2", "did you mean --ntasks-per-node?"),
    ("--mem_per_cpu=2", "did you mean --mem-per-cpu?"),
    ("--Nodes=2", "did you mean --nodes?"),
    ("--zzzzzz=2", "no option of sbatch; see `man sbatch`"),
    ("--workdir=/x", "--chdir"),
    ("--share", "--oversubscribe"),
    ("--nprocs=4", "--ntasks"),
    ("--cpu-bind=cores", "srun"),
    ("-Z", "-Z is no option"),
    ("-sfoo", "-f is no option"),
    # values
    ("--ntasks", "--ntasks needs a value"),
    ("-n", "--ntasks needs a value"),
    ("-n\n8", "--ntasks needs a value"),
    ("--hold=x", "--hold takes no value"),
    ("--comment=a\ab", "the value of --comment holds a control character"),
    ('-J "a\tb"', "--job-name holds a control character"),
    ("--comment=a\0b", "comment"),
    ("--comment=a\x85b", "comment"),
    ("--comment=\ud800", "comment"),
    # quotes
    ('--comment="a', 'the quote " is not closed'),
    ("--comment='a\n'", "the quote ' is not closed"),
    (r"--comment=a\ b", "use quotes"),
    ('"" -n2', "empty word"),
    # heterogeneous jobs
    (":", "heterogeneous"),
    ("-C :x", "heterogeneous"),
    ("-N2 : -N1", "heterogeneous"),
    ("#SBATCH hetjob", "heterogeneous"),
    ("packjob", "heterogeneous"),
    ("-J PackJob", "heterogeneous"),
    # options that a task must not set
    ("--time=5\n#SBATCH --uid=0", "--uid is refused"),
    ("--ui=0", "--uid is refused"),
    ("--gid 0", "--gid is refused"),
    ("--wrap=hostname", "--wrap is refused"),
    ("--wrap", "--wrap is refused"),
    ("--help", "--help is refused"),
    ("-h", "--help is refused"),
    ("--usage", "--usage is refused"),
    ("-V", "--version is refused"),
    ("--test-only", "tl-slurm submit --test-only"),
    ("--parsable", "--parsable is refused"),
    ("-W", "--wait is refused"),
    ("--ignore-pbs", "--ignore-pbs is refused"),
    ("-Q", "--quiet is refused"),
    ("-Hvv", "--verbose is refused"),
    ("--external", "--external is refused"),
]


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_what_is_no_option_is_refused(text: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_flags(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_says_where() -> None:
    with pytest.raises(OptionError) as caught:
        parse_flags("# mine\n--time=5\n  --bogus=1  # why\n")
    assert (caught.value.line, caught.value.text) == (3, "  --bogus=1  # why")
    assert str(caught.value).startswith("sbatch options, line 3: --bogus is no option of sbatch")


def test_an_option_knows_where_it_stood() -> None:
    assert [(o.name, o.line, o.text) for o in parse_flags("-n2\n#SBATCH -N2")] == [
        ("ntasks", 1, "-n2"),
        ("nodes", 2, "#SBATCH -N2"),
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Option("job-name", "a\nb"),
        lambda: Option("job-name"),
        lambda: Option("hold", "x"),
        lambda: Option("wrap", "x"),
        lambda: Option("tasks-per-node", "2"),
    ],
)
def test_options_made_by_hand_obey_the_same_rules(make: Callable[[], Option]) -> None:
    with pytest.raises(OptionError):
        make()


@given(st.one_of(st.text(max_size=60), TRICKY, st.lists(TRICKY).map("\n#SBATCH ".join)))
@settings(max_examples=500)
@example("--nodes=2 --gid=\\")
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (parse_flags, leading_directives):
        try:
            options = read(text)
        except OptionError as error:
            assert str(error)
        else:
            assert options is not None


@given(st.lists(st.sampled_from([o.flag for text, _ in READ for o in parse_flags(text)]), max_size=6), VALUES)
def test_layout_of_any_options_is_found_or_refused(written: list[str], count: str) -> None:
    options = parse_flags("\n".join(f"'{flag}'" for flag in written if "'" not in flag and "\\" not in flag))
    options += [Option(name, count) for name in ("nodes", "ntasks", "gpus", "gres", "ntasks-per-gpu")]
    try:
        assert task_layout(options, 2).world_size_fallback >= 0
    except OptionError as error:
        assert str(error)


# --- headers ------------------------------------------------------------------

HEADERS = [
    (Option("hold"), "#SBATCH --hold"),
    (Option("exclusive"), "#SBATCH --exclusive"),
    (Option("exclusive", "user"), "#SBATCH --exclusive=user"),
    (Option("nodes", "2"), "#SBATCH --nodes=2"),
    (Option("comment", ""), "#SBATCH --comment="),
    (Option("constraint", "a100|h100"), "#SBATCH --constraint=a100|h100"),
    (Option("array", "0-3%2"), "#SBATCH --array=0-3%2"),
    (Option("comment", "two words"), '#SBATCH --comment="two words"'),
    (Option("comment", "a#b"), '#SBATCH --comment="a#b"'),
    (Option("comment", "it's"), '#SBATCH --comment="it\'s"'),
    (Option("comment", 'say "hi"'), "#SBATCH --comment='say \"hi\"'"),
    (Option("comment", 'it\'s "x"'), '#SBATCH --comment="it\'s "\'"\'"x"\'"\''),
    (Option("output", r"C:\tmp"), r"#SBATCH --output=C:\\tmp"),
    (Option("comment", "$(touch x) `y`"), '#SBATCH --comment="$(touch x) `y`"'),
]


@pytest.mark.parametrize(("option", "line"), HEADERS)
def test_header_lines(option: Option, line: str) -> None:
    assert option.header() == line


@given(VALUES | TRICKY)
@settings(max_examples=500)
def test_a_header_is_read_back(value: str) -> None:
    option = Option("comment", value)
    assert header_options("#!/bin/sh\n" + option.header()) == [f"#SBATCH --comment={value}"]
    assert parse_flags(option.header()) == [option]
    assert parse_flags(option.header().removeprefix("#SBATCH ")) == [option]


@given(TRICKY)
@settings(max_examples=500)
def test_both_readers_split_alike(line: str) -> None:
    try:
        words = split_words(line)
    except ValueError:
        assume(False)
    assert words == sbatch_words(line)


# --- which options count ------------------------------------------------------

EFFECTIVE = [
    ("-n2 -N2 -n4", ["--nodes=2", "--ntasks=4"]),
    ("--tasks-per-node=1 --ntasks-per-node=2", ["--ntasks-per-node=2"]),
    ("--no-requeue --requeue --no-requeue", ["--requeue", "--no-requeue"]),
    ("--export=ALL --export=A=1", ["--export=ALL,A=1"]),
    ("--export=A=1 --export=ALL", ["--export=ALL,A=1"]),
    ("--export=A=1 --export=B=2", ["--export=A=1,B=2"]),
    ("--export=A=1,B=2 --export=A=3", ["--export=B=2,A=3"]),
    ("--export=A --export=A=3", ["--export=A=3"]),
    ("--export=ALL,A=1 --export=NONE", ["--export=NONE"]),
    ("--export=NONE --export=A=1", ["--export=A=1"]),
    ("--export=NONE --export=ALL", ["--export=ALL"]),
    ("--export=ALL --export=NONE --export=A=1", ["--export=A=1"]),
    ("--export=all,A=1 --export=nil", ["--export=nil"]),
    ("--export='A=\"x,y\",B' --export=ALL", ['--export=ALL,A="x,y",B']),
    ("--export=A=1 --export=B=2 --export=C=3", ["--export=A=1,B=2,C=3"]),
    ("--export=A=b=c,,D --export=E", ["--export=A=b=c,D,E"]),
    ("--export=A=1", ["--export=A=1"]),
]


@pytest.mark.parametrize(("text", "expected"), EFFECTIVE)
def test_the_last_option_counts_and_exports_are_merged(text: str, expected: list[str]) -> None:
    options = effective(parse_flags(text))
    assert [option.flag for option in options] == expected
    assert effective(options) == options


def test_a_merged_export_stands_where_the_last_one_stood() -> None:
    (option,) = effective(parse_flags("--export=ALL\n--export=A=1"))
    assert (option.line, option.text) == (2, "--export=A=1")


# --- scripts ------------------------------------------------------------------

SCRIPTS = [
    ("#!/bin/bash -l\n#SBATCH -n 4\nsrun x\n#SBATCH -N 2\n", ["--ntasks=4"], "#!/bin/bash -l", 2),
    ("#!/bin/sh\n\n  \n# x\n  # y\n#SBATCH -n2\n##SBATCH -N9\n#SBATCH -N2\ntrue", ["--ntasks=2", "--nodes=2"], None, 8),
    ("#SBATCH -n2\ntrue", ["--ntasks=2"], None, 1),
    ("#!/bin/sh\r\n#SBATCH -n2\r\ntrue\r\n", ["--ntasks=2"], "#!/bin/sh", 2),
    ("#!/bin/sh\n  #SBATCH -n2\n# SBATCH -n3\n#sbatch -n4\ntrue", [], "#!/bin/sh", 4),
    ("true\n#SBATCH -n2\n", [], None, 0),
    ("\n#!/bin/sh\n#SBATCH -n2", ["--ntasks=2"], None, 3),
    ("# only comments\n", [], None, 2),
    ("", [], None, 1),
]


@pytest.mark.parametrize(("script", "expected", "shebang", "body_start"), SCRIPTS)
def test_directives_at_the_top_of_a_script(
    script: str, expected: list[str], shebang: str | None, body_start: int
) -> None:
    found = leading_directives(script)
    assert [option.flag for option in found.options] == expected
    assert found.body_start == body_start
    if shebang:
        assert found.shebang == shebang


def test_a_bad_directive_names_the_line_of_the_script() -> None:
    with pytest.raises(OptionError, match="line 3: 'junk' is no option"):
        leading_directives("#!/bin/sh\n# x\n#SBATCH junk\ntrue\n#SBATCH more junk\n")


# --- layout -------------------------------------------------------------------

LAYOUTS = [
    # flags, nodes of the task, then: nodes, ntasks, tasks per node, given, tasks in all
    ("", 2, (2, None, None, False, 2)),
    ("--time=5 --gpus-per-node=4", 2, (2, None, None, False, 2)),
    ("-n 4", 2, (2, 4, None, True, 4)),
    ("--ntasks=3", 2, (2, 3, None, True, 3)),
    ("--tasks-per-node=4", 2, (2, None, 4, True, 8)),
    ("--ntasks=6 --ntasks-per-node=4", 2, (2, 6, 4, True, 6)),
    ("--ntasks='+6'", 2, (2, 6, None, True, 6)),
    ("--ntasks-per-gpu=1 --gpus-per-node=4", 2, (2, None, None, True, 8)),
    ("--ntasks-per-gpu=2 --gpus-per-node=a100:4", 2, (2, None, None, True, 16)),
    ("--ntasks-per-gpu=1 --gpus=4", 2, (2, None, None, True, 4)),
    ("--ntasks-per-gpu=1 --gpus=a100:2,h100:3", 2, (2, None, None, True, 5)),
    ("--ntasks-per-tres=1 --gres=gpu:2", 2, (2, None, None, True, 4)),
    ("--ntasks-per-gpu=1 --gres=nic:3,gpu:a100:2(S:0),gpu:h100", 2, (2, None, None, True, 6)),
    ("--ntasks-per-gpu=1 --gres=gpu", 2, (2, None, None, True, 2)),
    ("--ntasks-per-gpu=1 --gres=nic:3", 2, (2, None, None, True, 2)),
    ("--ntasks-per-gpu=1", 2, (2, None, None, True, 2)),
    ("-n4 --ntasks-per-gpu=1", 2, (2, 4, None, True, 4)),
    # limits, not layouts
    ("--ntasks-per-socket=2 --ntasks-per-core=1", 2, (2, None, None, False, 2)),
    ('--comment="use -n 8"', 2, (2, None, None, False, 2)),
    # nodes in the flags
    ("-N 2", 2, (2, None, None, False, 2)),
    ("-N 2-2 --ntasks-per-node=2", 2, (2, None, 2, True, 4)),
    ("--nodes=2k", 2048, (2048, None, None, False, 2048)),
    ("--nodes=1M", 1048576, (1048576, None, None, False, 1048576)),
]


@pytest.mark.parametrize(("text", "num_nodes", "expected"), LAYOUTS)
def test_task_layout(text: str, num_nodes: int, expected: tuple[Any, ...]) -> None:
    options = parse_flags(text)
    check_num_nodes(options, num_nodes)
    layout = task_layout(options, num_nodes)
    assert (
        layout.nodes,
        layout.ntasks,
        layout.ntasks_per_node,
        layout.given,
        layout.world_size_fallback,
    ) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--nodes=4", ["--nodes=4", "num_nodes: 2"]),
        ("-N 1-4", ["--nodes=1-4", "num_nodes: 2"]),
        ("--nodes=2-3", ["--nodes=2-3", "num_nodes: 2"]),
        ("-N1", ["--nodes=1", "num_nodes: 2"]),
        ("-n1", ["--ntasks=1", "num_nodes: 2", "--ntasks=2"]),
        ("--nodes=1,2", ["--nodes=1,2", "write it as --nodes=2"]),
        ("--nodes=1-3:2", ["--nodes=1-3:2"]),
        ("--nodes=two", ["--nodes=two"]),
        ("--nodes=-2", ["--nodes=-2"]),
        ("--nodes=2-", ["--nodes=2-"]),
        ("--nodes=99999999999", ["--nodes=9999"]),
    ],
)
def test_flags_that_contradict_num_nodes(text: str, words: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        check_num_nodes(parse_flags("--time=5\n" + text), 2)
    assert all(word in str(caught.value) for word in words)
    assert (caught.value.line, caught.value.text) == (2, text)


def test_a_flag_that_is_overridden_contradicts_nothing() -> None:
    check_num_nodes(parse_flags("--nodes=4 -n1 --nodes=2 -n2"), 2)


@pytest.mark.parametrize(
    "text", ["--ntasks=0", "--ntasks=two", "-n -1", "-n=4", "--ntasks-per-node=2k", "-n 0x2", "-n ٣"]
)
def test_counts_that_are_no_numbers(text: str) -> None:
    with pytest.raises(OptionError, match="is no number of tasks"):
        task_layout(parse_flags(text), 2)


# --- the case records ---------------------------------------------------------


@pytest.mark.parametrize("record", [r for r in FLAGS_CASES if r.get("error")], ids=lambda r: r["id"])
def test_error_records(record: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        parse_flags(record["sbatch_flags"])
    assert record["mentions"].lower() in str(caught.value).lower()


@pytest.mark.parametrize("record", [r for r in FLAGS_CASES if not r.get("error")], ids=lambda r: r["id"])
def test_records_parse_into_what_the_header_needs(record: dict[str, Any]) -> None:
    options = parse_flags(record["sbatch_flags"])
    check_num_nodes(options, record["num_nodes"])
    layout = task_layout(options, record["num_nodes"])
    defaults = {f"#SBATCH --nodes={layout.nodes}"}
    if not layout.given:
        defaults |= {f"#SBATCH --ntasks={layout.nodes}", "#SBATCH --ntasks-per-node=1"}
    written = defaults | {f"#SBATCH {option.flag}" for option in options}
    assert set(record["header_has"]) <= written
    assert not [line for line in written for unwanted in record["header_lacks"] if line.startswith(unwanted)]


# --- the real client ----------------------------------------------------------


class Seen(NamedTuple):
    """What sbatch read: the words of the script, the options it set, and everything it said."""

    words: list[str]
    options: dict[str, str]
    output: str


@pytest.fixture(scope="session")
def real_sbatch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Seen]]:
    """sbatch itself, which prints what it parsed before it tries a controller that is not there."""
    conf = tmp_path_factory.mktemp("conf") / "slurm.conf"
    conf.write_text(
        "ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/none\n"
        "CredType=cred/none\nMessageTimeout=5\nNodeName=n1\nPartitionName=p Nodes=ALL\n"
    )
    script = conf.with_name("script")
    environ = {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(conf), "LC_ALL": "C.UTF-8"}

    def run(header: str) -> Seen:
        script.write_text(f"#!/bin/sh\n{header}\ntrue\n")
        command = ["sbatch", "-vvvv", "--test-only", str(script)]
        with subprocess.Popen(
            command,
            env=environ,
            encoding="utf-8",
            errors="backslashreplace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as client:
            assert client.stdout is not None
            lines = []
            for line in client.stdout:
                lines.append(line)
                if "end of defined options" in line:
                    break
            client.kill()
        words = re.findall(r'^sbatch: debug2: Found in script, argument "(.*)"$', "".join(lines), re.M)
        listed = re.findall(r"^sbatch: ([a-z-]+) +: (.*)$", "".join(lines), re.M)
        return Seen(words, {k: v for k, v in listed if k not in ("test-only", "verbose")}, "".join(lines))

    yield run


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(VALUES | TRICKY, min_size=1, max_size=30))
@example(
    values=["a b", "a#b", "it's", 'say "hi"', 'it\'s "x" \\\'"', "\\", "\\\\ \\", "\u00a0", "\u2028", "", ":", "hetjob"]
)
@example(values=["x" * 20000, "'\"" * 500])
def test_sbatch_reads_headers_back(real_sbatch: Callable[..., Seen], values: list[str]) -> None:
    header = "\n".join(Option("comment", value).header() for value in values)
    seen = real_sbatch(header)
    assert seen.words == [f"--comment={value}" for value in values]
    assert seen.options == {"comment": values[-1]}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=TRICKY)
@example(line=r"a\ b c")
@example(line=r'"a\ b" c')
@example(line="'' b")
@example(line="a\\")
@example(line="-N2\v-n3\f-c1\r-J x")
def test_sbatch_splits_words_alike(real_sbatch: Callable[..., Seen], line: str) -> None:
    seen = real_sbatch(f"#SBATCH {line}")
    if "Unexpected `:`" in seen.output:
        with pytest.raises(ValueError):  # as such, or for what stands before it
            split_words(line)
        return
    try:
        expected = sbatch_words(line)
    except ValueError:
        assert "Unmatched" in seen.output
    else:
        assert seen.words == expected
        try:
            assert split_words(line) == expected
        except ValueError as error:  # what we refuse and 22.05 does not: words that it would drop or split
            assert "empty word" in str(error) or "backslash" in str(error)


# Values that sbatch prints unchanged, so that not only names can be compared.
SAME = (
    "-n8",
    "-n 8",
    "--ntasks 8",
    "-n 8 -N 2",
    "-N2 -Hn2",
    "-k -n2",
    "-koff",
    "--comment -n2",
    "-C=x",
    "--part=p -J a",
)
SAME += ("--tasks-per-node=4", "--tasks=4", "--comment=a=b # x", "--comm='a b'\t-n2", '-J "packjob" -n3', "--no-k")
SAME += ("-n2 -n4", "--comment=a#b -n2", "-Hn2 -J'x y'", "--exclusive=user -O", "--mail-user a@b -x n1", "--wckey=", "")


@pytest.mark.parametrize("line", SAME)
def test_sbatch_sets_the_same_options(real_sbatch: Callable[..., Seen], line: str) -> None:
    ours = {option.name: option.value for option in effective(parse_flags(line))}
    theirs = real_sbatch(f"#SBATCH {line}").options
    assert ours.keys() == theirs.keys()
    assert all(value in (None, "off", theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize(
    "line", ["--nod=2", "--zzz", "-Z", "--hold=x", "-n", "--ntasks", "junk", "-k off", "-sfoo", "--Nodes=2", "--clus=a"]
)
def test_sbatch_refuses_it_too(real_sbatch: Callable[..., Seen], line: str) -> None:
    assert "end of defined options" not in real_sbatch(f"#SBATCH {line}").output
    with pytest.raises(OptionError):
        parse_flags(line)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_table_says_what_sbatch_says(real_sbatch: Callable[..., Seen], name: str) -> None:
    alone, with_value = (real_sbatch(f"#SBATCH --{name}{value}").output for value in ("", "=x"))
    assert ("unrecognized option" in alone) == (name in NEWER - {"extra"})  # 22.05 reads it as --extra-node-info
    if name not in NEWER:
        assert ("requires an argument" in alone) == (TABLE[name].kind == "required")
    if name not in NEWER | {"requeue"}:  # only newer releases give --requeue a value
        assert ("doesn't allow an argument" in with_value) == (TABLE[name].kind == "none")


def test_the_table_lacks_no_option_of_sbatch(real_sbatch: Callable[..., Seen]) -> None:
    known = {*TABLE, *ALIASES}
    for letter in string.ascii_lowercase:
        asked = real_sbatch(f"#SBATCH --{letter}").output
        for name in re.findall(r"'--([a-z-]+)'", asked.partition("possibilities:")[2]):
            assert name in known
    for name in RENAMED:
        assert "unrecognized option" in real_sbatch(f"#SBATCH --{name}").output


@pytest.mark.parametrize("letter", string.ascii_letters + string.digits)
def test_short_options_are_those_of_sbatch(real_sbatch: Callable[..., Seen], letter: str) -> None:
    output = real_sbatch(f"#SBATCH -{letter}").output
    assert ("invalid option" in output) == (letter not in SHORT)
    assert ("requires an argument" in output) == (letter in SHORT and SHORT[letter].kind == "required")


def test_beginnings_of_names_mean_the_same(real_sbatch: Callable[..., Seen]) -> None:
    """For each name, its shortest beginning that is unambiguous here, and the one a letter shorter, which is not."""
    for name in {*TABLE, *ALIASES} - NEWER:
        length = next(n for n in range(1, len(name) + 1) if len(find_long(name[:n])) == 1)
        for beginning in {name[:length], name[: length - 1]} - {""}:
            ours = find_long(beginning)
            output = real_sbatch(f"#SBATCH --{beginning}").output
            if len(ours) == 1:
                assert "ambiguous" not in output and "unrecognized" not in output
                if ours == ["extra"]:  # which 22.05 reads as --extra-node-info
                    continue
                named = re.findall("option '--([a-z-]+)' requires", output)
                assert [ALIASES.get(found, found) for found in named] == ours * (TABLE[ours[0]].kind == "required")
            else:  # ambiguous for 22.05 too, or because of an option that it has not got yet
                assert "ambiguous" in output or NEWER.intersection(ours)
