"""Mixes as files: strict YAML in, checked mix out, and back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tokswarm.errors import ConfigError
from tokswarm.traffic.include import Places, assembled, located
from tokswarm.traffic.lengths_file import with_files_read
from tokswarm.traffic.mix import Mix
from tokswarm.traffic.mix_rules import broken_rules
from tokswarm.traffic.units import dec_hook, enc_hook

_UNQUOTED = tuple(f"{place}.{key}" for place in ("target", "targets") for key in ("key", "headers", "metrics_key"))
"""Where a key may stand by mistake: such values never appear in a message."""


def load_mix(path: Path, environ: Mapping[str, str]) -> Mix:
    """Read and check a mix from a file. ConfigError lists everything that is wrong with it, with lines."""
    return parse_mix(read_mix_text(path), source=str(path), environ=environ, mix_dir=path.parent)


def read_mix_text(path: Path) -> str:
    """The text of a mix file, whatever is in it. ConfigError when it cannot be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such mix") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the mix: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot read the mix: it is not UTF-8 text") from error


def parse_mix(text: str, *, source: str, environ: Mapping[str, str], mix_dir: Path | None = None) -> Mix:
    """Read and check a mix; `source` names it in messages, `${NAME}` is looked up in `environ`.

    What it includes, and its files of lengths, are read from `mix_dir` into it; None: it may name none.
    Give an `environ` without secrets when the text comes from somebody else: what is substituted
    becomes part of the mix.
    """
    whole = assembled(text, source=source, environ=environ, mix_dir=mix_dir, unquoted=_UNQUOTED)
    if whole.problems:
        raise located(whole.problems, whole.places)
    try:
        mix = msgspec.convert(whole.value, Mix, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from error
    problems = list(broken_rules(mix))
    if not problems:
        mix, problems = with_files_read(mix, mix_dir)
    problems = problems or list(broken_rules(mix))
    if problems:
        raise located(problems, whole.places)
    return mix


def check_mix(mix: Mix, *, source: str) -> None:
    """Check a mix that was made or changed in code, by the rules a file must obey. ConfigError lists what is wrong."""
    if problems := list(broken_rules(mix)):
        raise located(problems, Places(source, {}))


def mix_to_yaml(mix: Mix) -> str:
    """The mix as YAML that reads back as the same mix; what is at its default is left out."""
    plain = _escaped(msgspec.to_builtins(mix, enc_hook=enc_hook))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, dict):
        return {key: _escaped(one) for key, one in value.items()}
    return [_escaped(one) for one in value] if isinstance(value, list) else value
