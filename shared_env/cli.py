"""The command `shared-env`. `exec` is started once per rank, so it goes past everything that is slow to import."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_FOUND, NOT_EXECUTABLE = 127, 126


def main(argv: Sequence[str] | None = None) -> int:
    """Run `shared-env ARGV` and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["exec"] and arguments[1:2] not in ([], ["--help"], ["-h"]):
        return _exec(arguments[1:])
    from .commands import run

    return run(arguments)


def _exec(command: list[str]) -> int:
    """Put the six variables into the environment and become the command."""
    import os

    from .contract import EnvError, Rendezvous

    if command[0] == "--":
        command = command[1:]
    elif command[0].startswith("-"):
        print(f"shared-env exec: unknown option {command[0]}; usage: shared-env exec -- CMD [ARG ...]", file=sys.stderr)
        return 2
    if not command:
        print("shared-env exec: no command; usage: shared-env exec -- CMD [ARG ...]", file=sys.stderr)
        return 2
    try:
        os.environ.update(Rendezvous.from_environ().as_env())
    except EnvError as error:
        print(f"shared-env exec: {error}", file=sys.stderr)
        return 1
    try:
        os.execvp(command[0], command)  # noqa: S606
    except FileNotFoundError:
        print(f"shared-env exec: {command[0]}: not found", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"shared-env exec: {command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE


if __name__ == "__main__":
    raise SystemExit(main())
