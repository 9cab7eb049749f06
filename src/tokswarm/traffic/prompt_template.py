"""Templates of prompts: text with the names of columns in braces, `Answer briefly: {question}`. `{{` is a brace."""

from collections.abc import Mapping
from string import Formatter
from typing import Self

from tokswarm.traffic.mix import PromptRows

DEFAULT_FIELD = "prompt"
SUFFIXES = (".jsonl", ".csv", ".parquet")
"""Of files of prompts."""
_EXAMPLE = "write a column as {question}, and a brace as {{ or }}"


class Template:
    """A template that has been read. ValueError says what is wrong with it."""

    def __init__(self, text: str) -> None:
        self._parts: list[tuple[str, str | None]] = []
        try:
            parsed = list(Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"the braces do not fit; {_EXAMPLE}") from error
        for literal, name, spec, conversion in parsed:
            if name == "":
                raise ValueError(f"there is {{}} without a name; {_EXAMPLE}")
            if spec or conversion:
                raise ValueError(f"a column has nothing behind its name; {_EXAMPLE}")
            self._parts.append((literal, name))
        self.columns = list(dict.fromkeys(name for _, name in self._parts if name is not None))
        """In the order they are named."""
        if not self.columns:
            raise ValueError(f"it names no column, so all prompts would be the same; {_EXAMPLE}")

    @classmethod
    def of_column(cls, name: str) -> Self:
        """A column as it is, whatever its name."""
        template = cls("{column}")
        template._parts, template.columns = [("", name)], [name]
        return template

    def filled(self, row: Mapping[str, str]) -> str:
        """The text of a row that has all columns."""
        return "".join(literal + ("" if name is None else row[name]) for literal, name in self._parts)


def template_of(rows: PromptRows) -> Template:
    """How a row becomes a prompt. ValueError for a template that makes no sense."""
    if rows.template is not None:
        return Template(rows.template)
    return Template.of_column(DEFAULT_FIELD if rows.field is None else rows.field)
