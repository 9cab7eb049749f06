"""The page about mixes names every key there is, and its example is a mix."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect

from tokswarm.traffic import mix as mix_module
from tokswarm.traffic.mix import Mix, Spec
from tokswarm.traffic.mixfile import parse_mix
from tokswarm.traffic.rates import Diurnal, RateCourse

PAGE = (Path(__file__).parents[3] / "docs" / "mix.md").read_text(encoding="utf-8")


def specs() -> Iterator[type[msgspec.Struct]]:
    yield from (RateCourse, Diurnal)
    for one in vars(mix_module).values():
        if isinstance(one, type) and issubclass(one, Spec) and one is not Spec:
            yield one


KEYS = sorted({field.encode_name for spec in specs() for field in inspect.type_info(spec).fields})  # type: ignore[attr-defined]


def test_the_keys_are_found() -> None:
    assert {"for", "base_url", "zipf", "max_prompt_tokens"} <= set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_the_page_explains_the_key(key: str) -> None:
    assert re.search(rf"`{key}[:`]", PAGE)


def test_the_example_of_the_page_is_a_mix() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert isinstance(parse_mix(example, source="docs/mix.md", environ={}), Mix)


@pytest.mark.parametrize(
    ("key", "seconds"),
    [("connect_timeout", 10), ("first_byte_timeout", 120), ("gap_timeout", 60), ("timeout", 600)],
)
def test_the_page_tells_the_defaults_of_the_timeouts(key: str, seconds: int) -> None:
    defaults = {field.encode_name: field.default for field in inspect.type_info(mix_module.Target).fields}  # type: ignore[attr-defined]
    assert defaults[key].seconds == seconds
    assert f"| `{key}` | no, {defaults[key]} |" in PAGE
