"""Counts with a tokenizer that lies on the master's disk: the optional package `tokenizers` reads it."""

from collections.abc import Callable
from pathlib import Path

from tokswarm.errors import ConfigError

FILE = "tokenizer.json"
"""What Hugging Face's folders of models call it."""


def local_token_ends(file: str) -> Callable[[str], list[int]]:
    """What says where, in characters, each token of a text ends. ConfigError when the tokenizer cannot be used."""
    path = Path(file).expanduser()
    if path.is_dir():
        path /= FILE
    where = f"target.tokenizer: {path}"
    if not path.is_file():
        raise ConfigError(
            f"{where}: there is no such file on the master", hint=f"give the path of a {FILE}, or of its folder"
        )
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise ConfigError(
            f"{where}: the package tokenizers is not installed", hint="pip install 'tokswarm[tokenizers]' on the master"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise ConfigError(f"{where}: this is no tokenizer that the package tokenizers can read") from error

    def token_ends(text: str) -> list[int]:
        return [end for _, end in tokenizer.encode(text, add_special_tokens=False).offsets]

    return token_ends
