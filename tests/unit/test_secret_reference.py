"""Secrets come from where a reference points to, fit into a request head, and never appear in an error."""

import traceback
from pathlib import Path

import pytest

from tokswarm.errors import ConfigError
from tokswarm.secret_reference import resolve_reference
from tokswarm.traffic.mix import Target
from tokswarm.wire.target import ResolvedTarget

URL = "http://127.0.0.1:1/v1"


def test_a_secret_is_read_from_environment_and_file_without_the_blanks_around_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"  sk-file\n")
    assert resolve_reference("env:KEY", "target.key", {"KEY": "sk-env\n"}) == "sk-env"
    assert resolve_reference(f"file:{path}", "target.key", {}) == "sk-file"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"sk-first\nsk-second\n", "no HTTP header can carry", id="two-lines"),
        pytest.param("sk-hunter2…".encode(), "no HTTP header can carry", id="no-ascii"),
        pytest.param(b"sk-hunter2\xff\xfe", "no HTTP header can carry", id="no-utf-8"),
        pytest.param(b" \n", "which is empty", id="empty"),
    ],
)
def test_a_key_file_that_cannot_be_sent_is_refused_without_showing_any_of_it(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        ResolvedTarget(Target(base_url=URL, key=f"file:{path}"), {})
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(caught.value.__cause__)
    assert "sk-" not in shown


@pytest.mark.parametrize("reference", ["sk-live-1", "env:", "file:", ""])
def test_what_is_no_reference_is_refused_and_not_quoted(reference: str) -> None:
    with pytest.raises(ConfigError, match=r"^target\.key is not a reference$"):
        resolve_reference(reference, "target.key", {})


def test_a_header_reads_the_environment_and_no_file(tmp_path: Path) -> None:
    secret = tmp_path / "other"
    secret.write_text("not for the endpoint")
    target = Target(base_url=URL, headers={"x-api-key": "env:KEY", "x-where": f"file:{secret}", "x-env": "env:prod-1"})
    headers = ResolvedTarget(target, {"KEY": "k1"}).headers
    assert headers == {"x-api-key": "k1", "x-where": f"file:{secret}", "x-env": "env:prod-1"}


def test_a_header_that_would_break_the_head_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"target\.headers\.x-a: the environment variable A holds a line break"):
        ResolvedTarget(Target(base_url=URL, headers={"x-a": "env:A"}), {"A": "1\r\nx-b: 2"})
