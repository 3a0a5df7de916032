"""Slurm's host lists (``n[01-03],m7``) and counts per node (``2(x3),1``) as plain Python lists.

The grammar is the one that ``scontrol show hostnames`` expands (scontrol(1); the NodeName ranges of slurm.conf(5))
and the one of SLURM_TASKS_PER_NODE (sbatch(1), OUTPUT ENVIRONMENT VARIABLES). Hosts keep the order of the text:
Slurm numbers nodes and tasks in this order, so nothing is sorted and nothing is merged.
"""

from __future__ import annotations

from itertools import chain, product
from operator import sub

TYPE_CHECKING = False  # typing is slow to import, and every process of a job imports this module
if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_RANGE = 65_536  # numbers in one range: MAX_RANGE of Slurm
_MAX_HOSTS = 1_048_576  # entries of one result: sixteen of the largest ranges
_MAX_NAME = 255  # characters of a name made from brackets: the limit of DNS (RFC 1035, 2.3.4)
_MAX_DIGITS = 10  # of a count per node: Slurm keeps 32 bits
_FEW = 8  # ranges that are read faster one by one
_SHOWN = 60  # characters of a text that a message repeats

_UNCLOSED = "has no ']' of its own; close every bracket and nest none"
_UNOPENED = "has a ']' without a '[' before it; open the bracket or remove it"
_LONG_NAME = f"makes a name of more than {_MAX_NAME} characters; use a shorter one"
_TOO_MANY = f"brings the list over {_MAX_HOSTS} hosts; give a shorter list"


class HostlistError(ValueError):
    """Text that is no host list or no list of counts; ``text`` is all of it, ``part`` the faulty piece."""

    def __init__(self, text: str, part: str, problem: str) -> None:
        super().__init__(text, part, problem)
        self.text, self.part, self.problem = text, part, problem

    def __str__(self) -> str:
        where = _shown(self.part) if self.part == self.text else f"{_shown(self.part)} in {_shown(self.text)}"
        return f"{where} {self.problem}"


def expand_nodelist(text: str) -> list[str]:
    """Return every host of a Slurm host list, in Slurm's order, repeats included.

    Brackets may stand anywhere in a name; of several in one name the left one is outermost. Numbers are padded with
    zeros to the digits of the low end of their range. White space around the list is ignored.

    Args:
        text: a host list such as the value of SLURM_JOB_NODELIST.

    Raises:
        HostlistError: (a ValueError) the text is empty or malformed, a range has more than 65,536 numbers, a name
            with brackets has more than 255 characters, or the whole list has more than 1,048,576 hosts.

    >>> expand_nodelist("rack[1-2]n[09-10],login-a")
    ['rack1n09', 'rack1n10', 'rack2n09', 'rack2n10', 'login-a']
    """
    text = text.strip()
    _check_characters(text, text)
    hosts: list[str] = []
    pieces: list[str] = []  # the name being read: literal, inside of a bracket, literal, inside of a bracket, ...
    for index, outside in enumerate(text.split("[")):
        if index:
            inside, closing, outside = outside.partition("]")
            if not closing:
                raise HostlistError(text, "[" + inside, _UNCLOSED)
            pieces.append(inside)
        if "]" in outside:
            part = next(piece for piece in outside.split(",") if "]" in piece)
            raise HostlistError(text, part, _UNOPENED)
        literal, comma, following = outside.partition(",")
        pieces.append(literal)
        if comma:
            _add_name(hosts, pieces, text)
            if "," in following:
                *names, following = following.split(",")
                hosts += names
            pieces = [following]
    _add_name(hosts, pieces, text)
    return hosts


def first_host(text: str) -> str:
    """Return ``expand_nodelist(text)[0]``, reading no further than the first host needs.

    The cost does not grow with the number of hosts. Faults behind the first name, and behind the first range of
    each of its brackets, are not looked for.

    Args:
        text: a host list such as the value of SLURM_JOB_NODELIST.

    Raises:
        HostlistError: (a ValueError) the list is empty, or what was read of it is malformed.

    >>> first_host("n[007-900,3],m[1-4]")
    'n007'
    """
    text = text.lstrip()
    name, start = "", 0
    comma = text.find(",")
    while True:
        end = len(text) if comma < 0 else comma
        opening = text.find("[", start, end)
        if opening < 0:
            break
        closing = text.find("]", opening)
        if closing < 0 or text.find("[", opening + 1, closing) >= 0:
            raise HostlistError(text, text[opening : opening + _SHOWN], _UNCLOSED)
        ranges_end = closing if comma < 0 else min(comma, closing)
        fragment = text[opening + 1 : ranges_end]
        _read_range(fragment, text)
        name += text[start:opening] + fragment.partition("-")[0]
        start = closing + 1
        if ranges_end == comma:
            comma = text.find(",", start)
    name += text[start:end] if comma >= 0 else text[start:].rstrip()
    _check_characters(name, text)
    if "]" in name:
        raise HostlistError(text, name, _UNOPENED)
    if start and len(name) > _MAX_NAME:
        raise HostlistError(text, name, _LONG_NAME)
    return name


def expand_task_counts(text: str) -> list[int]:
    """Return one count per node from Slurm's short form, in the order of the nodes.

    Args:
        text: the value of SLURM_TASKS_PER_NODE, SLURM_JOB_CPUS_PER_NODE or the like.

    Raises:
        HostlistError: (a ValueError) the text is empty or malformed, or stands for more than 1,048,576 nodes.

    >>> expand_task_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    text = text.strip()
    counts: list[int] = []
    for item in text.split(","):
        number, times, repeat = item.partition("(x")
        repeat, closing = (repeat[:-1], repeat[-1:]) if times else ("1", ")")
        digits = item.isascii() and number.isdigit() and repeat.isdigit()
        if not (digits and closing == ")" and repeat.strip("0")):
            raise HostlistError(text, item, "is not a count per node; write 2, or 2(x3) for three nodes with 2 each")
        if max(len(number), len(repeat)) > _MAX_DIGITS or len(counts) + int(repeat) > _MAX_HOSTS:
            raise HostlistError(text, item, f"counts too much; the limit is {_MAX_HOSTS} nodes and ten digits")
        counts += [int(number)] * int(repeat)
    return counts


def _add_name(hosts: list[str], pieces: list[str], text: str) -> None:
    """Append the hosts of one name, given as literal, bracket, literal, ...; they are counted before they are made."""
    room = _MAX_HOSTS - len(hosts)
    if len(pieces) == 3:
        hosts += _read_bracket(pieces[0], pieces[1], pieces[2], room, text)
        return
    before, *others = pieces
    count, length, blocks = 1, 0, []
    for inside, after in zip(others[::2], others[1::2], strict=True):
        blocks.append(_read_bracket(before, inside, after, room, text))
        before = ""
        count *= len(blocks[-1])
        length += len(max(blocks[-1], key=len))
        if length > _MAX_NAME:
            raise HostlistError(text, f"[{inside}]", _LONG_NAME)
    if count > room:
        raise HostlistError(text, f"{pieces[0]}[{pieces[1]}]" if blocks else before, _TOO_MANY)
    hosts += map("".join, product(*blocks)) if blocks else pieces


def _read_bracket(before: str, inside: str, after: str, room: int, text: str) -> list[str]:
    """Return the names that one bracket makes, at most `room`."""
    literal = len(before) + len(after)
    if literal > _MAX_NAME:
        raise HostlistError(text, max(before, after, key=len), _LONG_NAME)
    digits, count, groups = _read_ranges(inside, text)
    if literal + digits > _MAX_NAME:
        raise HostlistError(text, f"[{inside}]", _LONG_NAME)
    if count > room:
        raise HostlistError(text, f"{before}[{inside}]", _TOO_MANY)
    names: list[str] = []
    for width, numbers in groups:
        if width:
            names += map(f"{before.replace('%', '%%')}%0{width}d{after.replace('%', '%%')}".__mod__, numbers)
        else:  # no number needs padding, and this is the faster way to write them
            names += [f"{before}{number}{after}" for number in numbers]
    return names


def _read_ranges(inside: str, text: str) -> tuple[int, int, list[tuple[int, Iterable[int]]]]:
    """Return the digits of the longest number of a bracket, how many it has, and them by the width of their zeros."""
    if inside and "," not in inside:
        width, numbers = _read_range(inside, text)
        return max(width, len(str(numbers[-1]))), len(numbers), [(width, numbers)]
    fragments = inside.split(",")
    if not (fragments[0] and fragments[-1]):
        raise HostlistError(text, f"[{inside}]", "has an empty range; write numbers and no extra comma")
    if len(fragments) > _FEW and (at_once := _read_ranges_at_once(inside, fragments)):
        return at_once
    groups: list[tuple[int, Iterable[int]]] = []
    digits = count = 0
    for fragment in fragments:
        width, numbers = _read_range(fragment, text)
        groups.append((width, numbers))
        count += len(numbers)
        digits = max(digits, width, len(str(numbers[-1])))
    return digits, count, groups


def _read_ranges_at_once(inside: str, fragments: list[str]) -> tuple[int, int, list[tuple[int, Iterable[int]]]] | None:
    """Read many ranges without a loop in Python; None when one of them is unusual or wrong."""
    pairs = inside
    if inside.count("-") != len(fragments):
        pairs = ",".join([each if "-" in each else f"{each}-{each}" for each in fragments])
    texts = pairs.replace("-", ",").split(",")
    lows = texts[::2]
    padded = (inside[0] == "0" or ",0" in inside) and any("0" < low < "1" for low in lows)  # "0" itself is not
    widths = set(map(len, lows)) if padded else {0}
    if len(texts) != 2 * len(fragments) or len(widths) != 1:
        return None
    if not inside.isascii() or "_" in inside or "+" in inside:  # what else is no number, int() refuses
        return None
    try:
        numbers = list(map(int, texts))
    except ValueError:
        return None
    starts, stops = numbers[::2], list(map((1).__add__, numbers[1::2]))
    counts = list(map(sub, stops, starts))
    if min(counts) < 1 or max(counts) > _MAX_RANGE:
        return None
    width = widths.pop()
    digits = max(width, len(str(max(numbers))))
    return digits, sum(counts), [(width, chain.from_iterable(map(range, starts, stops)))]


def _read_range(fragment: str, text: str) -> tuple[int, range]:
    """Return the numbers of ``7`` or ``08-11``, and the width to pad them to (0: none has a zero in front)."""
    low, dash, high = fragment.partition("-")
    if not (fragment.isascii() and low.isdigit() and (high.isdigit() or not dash)):
        raise HostlistError(text, fragment, "is not a number or a range; write digits only, as in 7 or 08-11")
    if len(fragment) > _MAX_NAME:
        raise HostlistError(text, fragment, _LONG_NAME)
    numbers = range(int(low), int(high or low) + 1)
    if not numbers:
        raise HostlistError(text, fragment, "runs backwards; write the smaller number first")
    if numbers.stop - numbers.start > _MAX_RANGE:
        raise HostlistError(text, fragment, f"has more than {_MAX_RANGE} numbers; use shorter ranges")
    return len(low) if low[0] == "0" else 0, numbers


def _check_characters(names: str, text: str) -> None:
    """Refuse an empty name, a blank and a control character (Slurm has no quoting that would allow them)."""
    if not names.isprintable() or " " in names:
        bad = next(char for char in names if char == " " or not char.isprintable())
        raise HostlistError(text, bad, "is a blank or control character; separate hosts with a comma alone")
    empty = f",{names},".find(",,")
    if empty >= 0:
        part = names[max(0, empty - _SHOWN // 2) : empty + _SHOWN // 2]
        raise HostlistError(text, part, "leaves a name or number empty; write hosts as in n[01-03],m7")


def _shown(text: str) -> str:
    """Return a text as a message repeats it: quoted, its control characters escaped, cut when long."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")
