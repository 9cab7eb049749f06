"""docs/cli.md and the command line say the same, and what `--help` shows can be typed."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tokswarm import errors
from tokswarm.cli import EXIT_SIGNAL, build
from tokswarm.commands import run
from tokswarm.worker import node

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


def commands(group: click.Group, path: str = "tokswarm") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by what is typed."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands(build()))


def section(command: click.Command, path: str) -> str:
    """What the page must hold for a command."""
    context = click.Context(command, info_name=path)
    rows = [f"## {path}", "", first_paragraph(command), "", f"    {' '.join(command.get_usage(context).split()[1:])}"]
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    records = [option.get_help_record(context) for option in options]
    if records:
        rows += ["", "| option | meaning |", "| --- | --- |"]
    rows += [f"| `{record[0]}` | {cell(record[1])} |" for record in records if record is not None]
    return "\n".join(rows) + "\n"


def first_paragraph(command: click.Command) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


@pytest.mark.parametrize("path", COMMANDS)
def test_the_page_has_every_command_with_its_options(path: str) -> None:
    assert section(COMMANDS[path], path) in PAGE


def test_the_page_has_no_command_that_there_is_not() -> None:
    assert re.findall(r"^## (tokswarm .+)$", PAGE, re.MULTILINE) == list(COMMANDS)


def test_the_page_lists_every_exit_code() -> None:
    ours = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    usage = click.UsageError("").exit_code
    want = {0, usage, *ours, run.EXIT_INVALID_RUN, run.EXIT_ABORTED, EXIT_SIGNAL}
    table = PAGE[PAGE.index("## Exit codes") :].split("\n## ")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == want
    assert {node.EXIT_OK, node.EXIT_LOST_MASTER, node.EXIT_REFUSED} <= want


def examples() -> Iterator[tuple[str, str]]:
    """The example lines of each command."""
    for path, command in COMMANDS.items():
        _, _, after = (command.epilog or "").partition("Examples:")
        for line in after.split("\n\n")[0].splitlines():
            if line.strip():
                yield path, line.strip()


EXAMPLES = list(examples())


def test_every_command_has_an_example() -> None:
    assert {path for path, _ in EXAMPLES} == set(COMMANDS)


@pytest.mark.parametrize(("path", "line"), EXAMPLES)
def test_an_example_can_be_typed(path: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mixes").mkdir()
    Path("worker.yaml").write_text("{}")
    words = shlex.split(line, comments=True)
    words = [word for word in words[: words.index(">") if ">" in words else None] if word != "..."]
    words = words[: words.index("|")] if "|" in words else words
    while "=" in words[0]:  # the environment
        words.pop(0)
    name = path.split()
    assert words[: len(name)] == name
    COMMANDS[path].make_context(path, words[len(name) :])
