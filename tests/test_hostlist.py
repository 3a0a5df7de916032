"""Slurm's host lists and task counts: tables, round trips, and the same lists through scontrol and python-hostlist."""

from __future__ import annotations

import gc
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostlist as python_hostlist
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import shared_env.hostlist
from shared_env.hostlist import HostlistError, expand_nodelist, expand_task_counts, first_host

CASES = Path(__file__).parent / "cases"
LITERAL = "abnxé01789-_.%{}$"  # characters of names, with those that mean something to Python's formatting


def records(name: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in yaml.safe_load((CASES / name).read_text())]


# Tables


@pytest.mark.parametrize("case", records("nodelist.yaml"))
def test_nodelist_case(case: dict[str, Any]) -> None:
    if case.get("error"):
        for function in (expand_nodelist, first_host):
            with pytest.raises(ValueError):
                function(case["nodelist"])
    else:
        assert expand_nodelist(case["nodelist"]) == case["hosts"]
        assert first_host(case["nodelist"]) == case["hosts"][0]


@pytest.mark.parametrize("case", records("task_counts.yaml"))
def test_task_counts_case(case: dict[str, Any]) -> None:
    if case.get("error"):
        with pytest.raises(ValueError):
            expand_task_counts(case["text"])
    else:
        assert expand_task_counts(case["text"]) == case["counts"]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[1,08-10,3]x", ["n1x", "n08x", "n09x", "n10x", "n3x"]),
        ("r[1-2]s[3-4]t[07-08]", [f"r{r}s{s}t{t}" for r in "12" for s in "34" for t in ("07", "08")]),
        ("n[1][2-3]", ["n12", "n13"]),
        ("[9-11]", ["9", "10", "11"]),
        ("n[0-2]", ["n0", "n1", "n2"]),
        ("n[00-00]", ["n00"]),
        ("n[8-0010]", ["n8", "n9", "n10"]),
        ("n[99999999999999999999]", ["n99999999999999999999"]),
        ("%d[1-2]%s[3],{}", ["%d1%s3", "%d2%s3", "{}"]),
        ("%d[01-02]%", ["%d01%", "%d02%"]),
        ("knöten[1-2]", ["knöten1", "knöten2"]),
        (" \t\r\nb,a,b \n", ["b", "a", "b"]),
        ("a" * 300, ["a" * 300]),
        ("n" * 254 + "[1-2]", ["n" * 254 + "1", "n" * 254 + "2"]),
    ],
)
def test_more_nodelists(text: str, hosts: list[str]) -> None:
    assert expand_nodelist(text) == hosts
    assert first_host(text) == hosts[0]


MALFORMED = [  # text, the part that the error of expand_nodelist names, and the first host where it is still clear
    ("", "", None),
    (" \n", "", None),
    (",a", ",a", None),
    ("a,", "a,", "a"),
    ("a,,b", "a,,b", "a"),
    ("a[1],,b", "a[1],,b", "a1"),
    ("n[1-2", "[1-2", None),
    ("a,n[1-2", "[1-2", "a"),
    ("n[", "[", None),
    ("]", "]", None),
    ("a]b", "a]b", None),
    ("a][1]", "a]", None),
    ("n[1]x]", "x]", None),
    ("a,n],b", "n]", "a"),
    ("n[1],m[2]]", "]", "n1"),
    ("n[[1]]", "[", None),
    ("n[1[2]]", "[1", None),
    ("n[1,2[3]", "[1,2", None),
    ("n[3-1]", "3-1", None),
    ("n[010-9]", "010-9", None),
    ("n[1-2,5-4]", "5-4", "n1"),
    ("n[]", "[]", None),
    ("n[,1]", "[,1]", None),
    ("n[1,]", "[1,]", "n1"),
    ("n[1,,2]", "n[1,,2]", "n1"),
    ("n[-1]", "-1", None),
    ("n[1-]", "1-", None),
    ("n[-]", "-", None),
    ("n[1-2-3]", "1-2-3", None),
    ("n[x]", "x", None),
    ("n[1,x]", "x", "n1"),
    ("n[1_0-2_0]", "1_0-2_0", None),
    ("n[+1-+2]", "+1-+2", None),
    ("n[0x1]", "0x1", None),
    ("n[\u0661-\u0663]", "\u0661-\u0663", None),
    ("n[\u00b2]", "\u00b2", None),
    ("n[1 - 2]", " ", None),
    ("n[ 1]", " ", None),
    ("a b", " ", None),
    ("a,b c", " ", "a"),
    ("n[1-2] n[3]", " ", None),
    ("a\tb,c", "\t", None),
    ("a\x00", "\x00", None),
    ("a\x1b[1]", "\x1b", None),
    ("a\u00a0b", "\u00a0", None),
    ("a\u2028b", "\u2028", None),
    ("a\udcffb", "\udcff", None),
    ("n[1-65537]", "1-65537", None),
    ("n[1-65536][1-17]", "n[1-65536]", "n11"),
    ("n[1-65536]," * 15 + "m[1-65537]", "1-65537", "n1"),
    ("n[1-65536]," * 16 + "m", "m", "n1"),
    ("n," * 1_048_576 + "m", "m", "n"),
    ("n" * 255 + "[1-2]", "[1-2]", None),
    ("n[1-2]" + "x" * 256, "x" * 256, None),
    (f"n[{'1' * 255}]", f"[{'1' * 255}]", None),
    (f"n[1-{'9' * 6000}]", f"1-{'9' * 6000}", None),
    ("n" + "[1]" * 255, "[1]", None),
    ("n" + "[1-2]" * 5000, "[1-2]", None),
]


@pytest.mark.parametrize(("text", "part", "first"), MALFORMED, ids=[ascii(text[:20]) for text, _, _ in MALFORMED])
def test_malformed(text: str, part: str, first: str | None) -> None:
    with pytest.raises(HostlistError) as caught:
        expand_nodelist(text)
    assert (caught.value.text, caught.value.part) == (text.strip(), part)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()
    if first is None:
        with pytest.raises(HostlistError):
            first_host(text)
    else:
        assert first_host(text) == first


def test_sizes_at_the_limit() -> None:
    assert len(expand_nodelist("n[0-65535]")) == 65_536
    assert len(expand_nodelist("n[1-65536]" + ",n[1-65536]" * 15)) == 1_048_576
    assert len(expand_nodelist("n[1-65536][1-16]")) == 1_048_576


@pytest.mark.parametrize(
    ("text", "counts"),
    [(" 4(x2),3\n", [4, 4, 3]), ("0", [0]), ("4294967295", [4294967295]), ("1(x1048576)", [1] * 1_048_576)],
)
def test_more_task_counts(text: str, counts: list[int]) -> None:
    assert expand_task_counts(text) == counts


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", ""),
        (",", ""),
        ("1,", ""),
        ("1,,2", ""),
        ("2(x3),x", "x"),
        *((item, item) for item in ("2(x3", "2(x34", "2x3", "2x3)", "2(x3))", "2(xx3)", "(x3)", "2(x0)", "2(x00)")),
        *((item, item) for item in ("2(X3)", "2(x3)1", "2[x3]")),
        *((item, item) for item in ("-1", "+1", "1.0", "1_0", "2(x-1)", "2 (x3)", "2( x3)", "\u00b2", "\u0662(x3)")),
        *((item, item) for item in ("1(x1048577)", "1(x99999999999)", "99999999999", "9" * 6000)),
        ("1(x1048576),7", "7"),
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_malformed_task_counts(text: str, part: str) -> None:
    with pytest.raises(HostlistError) as caught:
        expand_task_counts(text)
    assert caught.value.part == part
    assert len(str(caught.value)) < 300


def test_error_says_what_is_wrong_and_what_to_write() -> None:
    with pytest.raises(HostlistError) as caught:
        expand_nodelist("a,node[3-1]")
    assert str(caught.value) == "'3-1' in 'a,node[3-1]' runs backwards; write the smaller number first"
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.text, copied.part) == (str(caught.value), "a,node[3-1]", "3-1")


# Generated lists: the text and, by other means, the hosts that it stands for


def make_literal(rng: random.Random, shortest: int) -> str:
    return "".join(rng.choice(LITERAL) for _ in range(rng.randint(shortest, 5)))


def make_range(rng: random.Random) -> tuple[str, list[str]]:
    low = rng.choice([0, 1, 8, 9, 10, 98, 995, 65_535, rng.randrange(10_000_000)])
    low_text = str(low).zfill(rng.choice([1, 1, 2, 3, 6]))
    if rng.random() < 0.4:
        return low_text, [low_text]
    high = low + rng.choice([0, 1, 2, 3, 12])
    high_text = str(high).zfill(rng.choice([1, len(low_text)]))
    return f"{low_text}-{high_text}", [str(number).zfill(len(low_text)) for number in range(low, high + 1)]


def make_name(rng: random.Random, most_brackets: int, suffix: bool) -> tuple[str, list[str]]:
    brackets = rng.randint(0, most_brackets)
    text = make_literal(rng, 0 if brackets else 1)
    hosts = [text]
    for left in reversed(range(brackets)):
        ranges = [make_range(rng) for _ in range(rng.randint(1, 4))]
        after = make_literal(rng, 0) if left or suffix else ""
        text += "[" + ",".join(written for written, _ in ranges) + "]" + after
        hosts = [host + number + after for host in hosts for _, numbers in ranges for number in numbers]
    return text, hosts


def make_list(rng: random.Random, *, most_brackets: int = 3, suffix: bool = True) -> tuple[str, list[str]]:
    names = [make_name(rng, most_brackets, suffix) for _ in range(rng.randint(1, 6))]
    names += rng.choices(names, k=rng.choice([0, 0, 1]))  # a host may be there twice
    return ",".join(text for text, _ in names), [host for _, hosts in names for host in hosts]


@given(st.randoms(use_true_random=False), st.sampled_from(["", " ", "\n", "\r\n", "\t "]))
@settings(max_examples=500, deadline=None)
def test_round_trip(rng: random.Random, blank: str) -> None:
    text, hosts = make_list(rng)
    assert expand_nodelist(blank + text + blank) == hosts
    assert first_host(blank + text + blank) == hosts[0]


@given(st.text(alphabet="an019[],-- \n\u0663", max_size=12))
@settings(max_examples=2000, deadline=None)
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        hosts = expand_nodelist(text)
    except HostlistError:
        return
    assert hosts and all(hosts)
    assert first_host(text) == hosts[0]
    assert expand_nodelist(",".join(hosts)) == hosts
    assert hosts == python_hostlist.expand_hostlist(text.strip(), allow_duplicates=True)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 50), st.booleans()), min_size=1))
def test_task_counts_round_trip(groups: list[tuple[int, int, bool]]) -> None:
    items, counts = [], []
    for count, repeat, short in groups:
        items += [f"{count}(x{repeat})"] if short else [str(count)] * repeat
        counts += [count] * repeat
    assert expand_task_counts(",".join(items)) == counts


# The same lists through other programs
#
# Left out for scontrol 22.05, whose answer is known to be another one:
# - text after the last bracket (`n[1-2]-ib`) is refused; later releases expand it;
# - of three brackets the middle one runs slowest; here, and in python-hostlist, the left one does;
# - numbers above 2**64 - 1 are silently replaced by it;
# - a trailing newline is refused; an unbalanced bracket is expanded to a made-up name (`n]`) with status 0;
# - empty items (`a,,b`), an empty text, a blank between names and `n[1-]` are accepted.
# Left out for python-hostlist: more than 100,000 hosts (refused), empty items and an empty text (accepted).
SCONTROL_DIFFERS = {"B07d", "B12a", "B12b", "B16", "P12a", "P12b", "P15", "P16"}

Scontrol = Callable[[str], list[str]]


@pytest.fixture
def scontrol(tmp_path: Path) -> Scontrol:
    """Give ``scontrol show hostnames``: it asks no controller, but it does not start without a configuration."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\n")
    environ = {"PATH": os.environ["PATH"], "SLURM_CONF": str(conf)}

    def show_hostnames(text: str) -> list[str]:
        command = ["scontrol", "--", "show", "hostnames", text]  # a name may begin with a dash
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=True)
        return [] if done.stderr else done.stdout.splitlines()

    return show_hostnames


@pytest.mark.parametrize("seed", range(40))
def test_like_scontrol(scontrol: Scontrol, seed: int) -> None:
    rng = random.Random(seed)
    lists = [make_list(rng, most_brackets=2, suffix=False)[0] for _ in range(100)]
    shown = iter(scontrol(",end-of-list,".join([*lists, ""])[:-1]))  # one process for all of them
    for text in lists:
        assert expand_nodelist(text) == list(iter(lambda: next(shown, None), "end-of-list")), text
    assert next(shown, None) is None


@pytest.mark.parametrize("seed", range(300))
def test_one_list_like_scontrol(scontrol: Scontrol, seed: int) -> None:
    text, _ = make_list(random.Random(f"one {seed}"), most_brackets=2, suffix=False)
    assert expand_nodelist(text) == scontrol(text)


@pytest.mark.parametrize("case", [case for case in records("nodelist.yaml") if case.id not in SCONTROL_DIFFERS])
def test_cases_are_what_scontrol_says(scontrol: Scontrol, case: dict[str, Any]) -> None:
    assert scontrol(case["nodelist"]) == case.get("hosts", [])


def test_range_limit_is_that_of_scontrol(scontrol: Scontrol) -> None:
    assert scontrol("n[1-65536]") == expand_nodelist("n[1-65536]")
    assert scontrol("n[1-65537]") == []


def test_like_python_hostlist() -> None:
    rng = random.Random("python-hostlist")
    for _ in range(4000):
        text, _ = make_list(rng)
        assert expand_nodelist(text) == python_hostlist.expand_hostlist(text, allow_duplicates=True), text


# Cost, in calls and not in seconds


def calls(function: Callable[[str], object], text: str) -> int:
    """Count the Python and C functions that are called."""
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    gc.disable()  # its callbacks would be counted
    sys.setprofile(profile)
    try:
        function(text)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


SHAPES: dict[str, Callable[[int], str]] = {
    "one range": lambda size: f"n[00001-{size}]",
    "numbers": lambda size: "n[" + ",".join(map(str, range(1, 2 * size, 2))) + "]",
    "pairs": lambda size: "n[" + ",".join(f"{low}-{low + 1}" for low in range(0, 3 * size, 3)) + "]",
    "plain": lambda size: ",".join(f"n{number}" for number in range(size)),
    "brackets": lambda size: ",".join(f"n[{number}]" for number in range(size)),
    "product": lambda size: f"r[1-{size // 10}]n[0-9]",
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_first_host_costs_the_same_for_any_size(shape: Callable[[int], str]) -> None:
    assert calls(first_host, shape(10_000)) == calls(first_host, shape(10))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_expansion_is_linear(shape: Callable[[int], str]) -> None:
    small, large = calls(expand_nodelist, shape(2_000)), calls(expand_nodelist, shape(20_000))
    assert large <= 10 * small


@pytest.mark.parametrize("shape", ["one range", "numbers", "plain"])
def test_common_forms_take_no_python_step_per_host(shape: str) -> None:
    assert calls(expand_nodelist, SHAPES[shape](10_000)) < 100


def test_import_loads_nothing_slow() -> None:
    source = shared_env.hostlist.__file__
    script = f"import sys; exec(compile(open({source!r}).read(), 'hostlist', 'exec')); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert not {"re", "typing", "dataclasses", "enum", "pathlib", "json"} & set(done.stdout.split())


@given(
    st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 12), st.booleans()), min_size=9, max_size=30),
    st.sampled_from([(0,), (3,), (4,), (0, 2, 5)]),
    st.sampled_from([None, None, "", "7-", "-7", "9-8", "1-2-3", "+7", "7_0", "0-70000", "\u0663", "0" * 300]),
)
def test_many_ranges_at_once_are_read_as_one_by_one(
    ranges: list[tuple[int, int, bool]], widths: tuple[int, ...], damage: str | None
) -> None:
    fragments = []
    for index, (low, more, single) in enumerate(ranges):
        width = widths[index % len(widths)]
        fragments.append(f"{low:0{width}}" if single else f"{low:0{width}}-{low + more:0{width}}")
    if damage is not None:
        fragments[len(fragments) // 2] = damage
        with pytest.raises(HostlistError):
            expand_nodelist(f"n[{','.join(fragments)}]x")
    else:
        one_by_one = [host for fragment in fragments for host in expand_nodelist(f"n[{fragment}]x")]
        assert expand_nodelist(f"n[{','.join(fragments)}]x") == one_by_one
