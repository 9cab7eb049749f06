"""The `tokswarm` command line: its commands, and how errors leave it."""

import logging
import os
import sys
from collections.abc import Sequence

import click

from tokswarm.__main__ import UNPATCHED_COMMANDS, chosen_command
from tokswarm.errors import TokswarmError
from tokswarm.version import VERSION

EXIT_SIGNAL = 130
EXIT_PIPE_CLOSED = 1


def build(arguments: Sequence[str] = ()) -> click.Group:
    """All commands, or the one that `arguments` name where it is to load no more than it needs: `sim` and `worker`."""

    @click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
    @click.version_option(VERSION)
    @click.option("-v", "--verbose", is_flag=True, help="Say more on stderr.")
    def tokswarm(*, verbose: bool) -> None:
        """Load-test LLM endpoints: where tok/s bends against concurrency, and why.

        Start with `tokswarm demo`.
        """
        level = logging.INFO if verbose else logging.WARNING
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)

    chosen = chosen_command(arguments)
    if chosen in UNPATCHED_COMMANDS:
        from tokswarm.simulator.command import command as sim  # noqa: PLC0415 - see the docstring

        tokswarm.add_command(sim())
        return tokswarm

    from tokswarm.commands.worker import worker  # noqa: PLC0415 - see the docstring

    if chosen == worker.name:
        tokswarm.add_command(worker)
        return tokswarm

    from tokswarm.commands import fleet, grafana, mix, predict, results, run  # noqa: PLC0415 - see the docstring
    from tokswarm.simulator.command import command as sim  # noqa: PLC0415

    commands = (run.demo, run.run, fleet.up, fleet.master, worker, sim(), mix.mix, results.runs)
    for command in (*commands, results.report, results.export, predict.command, grafana.grafana):
        tokswarm.add_command(command)
    return tokswarm


def run_cli(arguments: list[str]) -> int:
    """Run a command; its exit code. Errors of ours leave as one line and a hint."""
    try:
        code = build(arguments).main(args=arguments, prog_name="tokswarm", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_SIGNAL
    except BrokenPipeError:
        # Whoever read our output has seen enough, as `head` has; what is left must not be tried again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except TokswarmError as error:
        click.echo(f"error: {error}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        return error.exit_code
    return code if isinstance(code, int) else 0
