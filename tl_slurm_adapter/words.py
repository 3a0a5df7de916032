"""Words of an `#SBATCH` line: split as sbatch splits them, and quoted so that every release reads the same value.

sbatch(1) does not give the rules; they were read off 22.05, 24.11 and 26.05, which agree but for one case (see below).
"""

from __future__ import annotations

import re

BLANKS = " \t\n\v\f\r"  # isspace(3) of the C locale: a no-break space is part of a word


def quote(value: str) -> str:
    r"""VALUE as one word: quotes only where sbatch needs them, a backslash only for a backslash.

    >>> print(quote("a100|h100"), quote("two words"), quote('say "hi"'), quote("C:\\tmp"))
    a100|h100 "two words" 'say "hi"' C:\\tmp
    """
    text = value.replace("\\", "\\\\")  # sbatch takes a backslash out everywhere, inside both quotes too
    if not any(char in text for char in BLANKS + "#\"'"):
        return text
    if '"' not in text:
        return f'"{text}"'
    if "'" not in text:
        return f"'{text}'"
    return "".join(f"'{part}'" if '"' in part else f'"{part}"' for part in re.findall(r'"+|[^"]+', text))


def split_words(text: str) -> list[str]:
    """The words of TEXT without their quotes, up to an unquoted `#` (which ends a word, too).

    Raises ValueError on an open quote, on the separators of a heterogeneous job, and where sbatch would drop words or
    its releases disagree.

    >>> split_words('-N 2 --comment="a b" # why')
    ['-N', '2', '--comment=a b']
    """
    words: list[str] = []
    at = 0
    while True:
        while at < len(text) and text[at] in BLANKS:
            at += 1
        if at == len(text) or text[at] == "#":
            return words
        word, end = _read_word(text, at)
        raw, at = text[at:end], end
        if raw.startswith(":") or raw.lower() in ("hetjob", "packjob"):
            raise ValueError(
                f"{raw!r} separates the parts of a heterogeneous job, which a task cannot be; "
                "remove it, or put quotes around it if it is a value"
            )
        if word:
            words.append(word)
        elif text[at:].strip(BLANKS):
            raise ValueError(f"sbatch ignores what follows the empty word {raw}; remove it")


def _read_word(text: str, at: int) -> tuple[str, int]:
    """The word that starts at AT, without its quotes, and the place behind it."""
    word, quoted = "", ""
    while at < len(text) and (quoted or text[at] not in BLANKS + "#"):
        char = text[at]
        if char == "\\":
            at += 1
            if not quoted and at < len(text) and text[at] in BLANKS:
                # 22.05 ends the word here, later releases keep the blank
                raise ValueError("a backslash does not protect a blank in every Slurm release; use quotes")
            word += text[at : at + 1]
        elif char == quoted:
            quoted = ""
        elif not quoted and char in "\"'":
            quoted = char
        else:
            word += char
        at += 1
    if quoted:
        raise ValueError(f"the quote {quoted} is not closed")
    return word, min(at, len(text))  # a backslash at the very end stands for nothing
