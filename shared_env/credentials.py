"""Which variables hold credentials, and texts without the values of these."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

MASK = "***"
SHORTEST = 4  # characters of a value that is looked for in other texts: "1" stands everywhere
# fmt: off
_WORDS = frozenset((
    "TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "CREDS",
    "APIKEY", "APIKEYS", "JWT",
))
# HFTOKEN, dbPassword
_ENDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "ACCESSKEY", "PRIVATEKEY")
_LAST_WORDS = frozenset(("AUTH", "PASS", "PAT", "PWD"))  # BASIC_AUTH, but AUTH_METHOD
_KEYS = frozenset((
    "API", "ACCESS", "ACCOUNT", "APP", "APPLICATION", "AUTH", "CLIENT", "DEPLOY", "ENCRYPTION", "KAGGLE", "PRIVATE",
    "SECRET", "SERVICE", "SIGNING", "SSH", "STORAGE", "SUBSCRIPTION",
))
# A word of what is said about a credential, or of something else that has its name: VAULT_TOKEN_FILE, PAD_TOKEN_ID.
_ABOUT = frozenset((
    "COUNT", "DIR", "DIRECTORY", "ENABLED", "ENDPOINT", "EXPIRY", "FILE", "ID", "IDS", "INDEX", "LEN", "LENGTH",
    "LIMIT", "METHOD", "MODE", "NAME", "NUM", "PATH", "RATE", "SIZE", "TIMEOUT", "TTL", "TYPE", "URI", "URL", "WEIGHT",
))
_TEXT_TOKENS = frozenset((
    "AUDIO", "BOS", "BYTES", "CLS", "EOD", "EOS", "EOT", "FLOPS", "IMAGE", "MASK", "MAX", "MIN", "NEW", "NEXT", "NUM",
    "PAD", "PER", "SEP", "SPECIAL", "START", "STOP", "UNK",
))
# fmt: on
# NAME=value, --name=value, --name value; the lengths are bounded so that the search stays linear.
_NAME = re.compile(r"(?<![\w$])(?P<dashes>--?)?(?P<name>[A-Za-z_][\w-]{0,80})(?P<is>=|[ ]{1,9}(?=[^\s-]))")
# Up to a blank or the end of what surrounds it; a quote that begins it reaches to its end, or that of the text.
_QUOTED = r"""\\?"(?:\\.|[^"\\])*\\?"|\\?'[^'\\]*\\?'"""
_VALUE = re.compile(rf"""(?:\\?"(?![^\n]*")[^\n]*|\\?'(?![^\n]*')[^\n]*|(?:{_QUOTED}|[^\s,;'"\\)&|<>]|\\[^"'])+)""")


def is_credential(name: str) -> bool:
    """Whether a variable of this name holds a credential, as far as the words in the name tell.

    >>> [is_credential(name) for name in ("HF_TOKEN", "WANDB_API_KEY", "dbPassword", "AWS_ACCESS_KEY_ID")]
    [True, True, True, True]
    >>> [is_credential(name) for name in ("MAX_TOKENS", "TOKENIZERS_PARALLELISM", "AUTHOR", "KEYBOARD", "NUM_KEYS")]
    [False, False, False, False, False]
    """
    words = [word.rstrip("0123456789") for word in re.split(r"[_-]+", name.upper())]
    words = [word for word in words if word]
    if not words:
        return False
    pairs = list(pairwise(words))
    if any(first in _KEYS and second in ("KEY", "KEYS") for first, second in pairs):
        return words[-1] not in _ABOUT - {"ID"}
    if words[-1] in _LAST_WORDS:
        return len(words) > 1 or words[-1] == "AUTH"
    if words[-1] in _ABOUT:
        return False
    tokens_of_text = any(first in _TEXT_TOKENS and second == "TOKEN" for first, second in pairs)
    return not tokens_of_text and any(word in _WORDS or word.endswith(_ENDS) for word in words)


def credentials_in(env: Mapping[str, str], secrets: Iterable[str] = ()) -> frozenset[str]:
    """The names in `env` whose values must not be shown: `secrets`, and what `is_credential` says."""
    names = frozenset(secrets)
    return frozenset(name for name in env if name in names or is_credential(name))


def shown_env(env: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """`env` for a person to read.

    >>> shown_env({"LR": "0.1", "HF_TOKEN": "hf_abc", "OTHER": "x"}, ["OTHER"])
    {'LR': '0.1', 'HF_TOKEN': '***', 'OTHER': '***'}
    """
    hidden = credentials_in(env, secrets)
    return {name: MASK if name in hidden else value for name, value in env.items()}


def mask(text: str, values: Iterable[str] = ()) -> str:
    """A text for a person, without `values` and without what is given to a name that holds a credential.

    >>> mask("srun --api-key abc LR=0.1 HF_TOKEN='a b' python train.py")
    'srun --api-key *** LR=0.1 HF_TOKEN=*** python train.py'
    """
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= SHORTEST:
            for form in (value, repr(value)[1:-1], " ".join(value.split())):
                text = text.replace(form, MASK) if form else text
    parts: list[str] = []
    at = 0
    for found in _NAME.finditer(text):
        if found.start() < at or (found["is"].isspace() and not found["dashes"]) or not is_credential(found["name"]):
            continue
        given = _VALUE.match(text, found.end())
        # "$OTHER" says nothing
        if given and not given[0].strip("\\\"'").startswith("$") and given[0] not in ("...", MASK):
            parts += [text[at : found.end()], MASK]
            at = given.end()
    return "".join([*parts, text[at:]])


def readable(text: str) -> str:
    r"""A text on one line, with escapes for what cannot be printed.

    >>> print(readable("a\nb\x1b[1m"))
    a\nb\x1b[1m
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
