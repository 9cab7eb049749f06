"""The `tokswarm` command: patches the process for gevent first, where the command needs it, then parses."""

import sys

UNPATCHED_COMMANDS = ("sim",)
"""Commands with an event loop of their own."""


def main() -> None:
    """Entry point. Exit codes are listed in docs/cli.md."""
    if not set(sys.argv[1:2]) & set(UNPATCHED_COMMANDS):
        from gevent import monkey  # noqa: PLC0415 - before anything that imports sockets or TLS

        monkey.patch_all()
    from tokswarm.cli import run_cli  # noqa: PLC0415 - after the patch

    sys.exit(run_cli(sys.argv[1:]))


if __name__ == "__main__":
    main()
