"""The `tokswarm` command: patches the process for gevent first, where the command needs it, then parses."""

import sys
from collections.abc import Sequence

UNPATCHED_COMMANDS = ("sim",)
"""Commands with an event loop of their own."""


def chosen_command(arguments: Sequence[str]) -> str:
    """The command these arguments name, after flags of `tokswarm` itself; empty when they name none."""
    return next((argument for argument in arguments if not argument.startswith("-")), "")


def main() -> None:
    """Entry point. Exit codes are listed in docs/cli.md."""
    if chosen_command(sys.argv[1:]) not in UNPATCHED_COMMANDS:
        from gevent import monkey  # noqa: PLC0415 - before anything that imports sockets or TLS

        monkey.patch_all()
    from tokswarm.cli import run_cli  # noqa: PLC0415 - after the patch

    sys.exit(run_cli(sys.argv[1:]))


if __name__ == "__main__":
    main()
