"""A second reader of `#SBATCH` blocks, written apart from the package, so that headers can be compared by meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BLANKS = " \t\n\v\f\r"


def sbatch_words(text: str) -> list[str]:
    """Split the text after `#SBATCH` into words by the rules of sbatch 22.05. ValueError on an open quote.

    A backslash does not protect a blank outside quotes: release 22.05 ends the word there (newer ones do not), so a
    header that must work everywhere puts quotes around blanks. An empty word ends the line.
    """
    words: list[str] = []
    i, n = 0, len(text)
    while True:
        while i < n and text[i] in BLANKS:
            i += 1
        if i >= n or text[i] == "#":
            return words
        word, quote, escaped = "", "", False
        while i < n and (quote or text[i] not in BLANKS):
            c = text[i]
            if escaped:
                word, escaped = word + c, False
            elif c == "\\":
                escaped = True
            elif quote:
                if c == quote:
                    quote = ""
                else:
                    word += c
            elif c in "\"'":
                quote = c
            elif c == "#":
                i = n
                break
            else:
                word += c
            i += 1
        if quote:
            raise ValueError(f"unmatched {quote} in {text!r}")
        if not word:
            return words
        words.append(word)


def header_options(script: str) -> list[str]:
    """['#SBATCH --nodes=2', ...] from the directive block at the top of a script, values unquoted."""
    out: list[str] = []
    for line in script.split("\n"):
        if line.startswith("#SBATCH"):
            out += ["#SBATCH " + word for word in sbatch_words(line[len("#SBATCH") :])]
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return out


def applies(script: str, record: Mapping[str, Any]) -> bool:
    """True when the header of `script` satisfies header_has / header_lacks of a record of cases/flags.yaml."""
    options = header_options(script)
    lacks: Sequence[str] = record["header_lacks"]
    return all(wanted in options for wanted in record["header_has"]) and not any(
        option.startswith(unwanted) for unwanted in lacks for option in options
    )
