"""Mixes take classes from other files, and mistakes there are told with that file's name and line."""

from pathlib import Path

import pytest

from tokswarm.errors import ConfigError
from tokswarm.traffic.mix import Mix
from tokswarm.traffic.mixfile import load_mix, mix_to_yaml, parse_mix

MIX = """\
name: sample
include: INCLUDE
target: {base_url: "http://127.0.0.1:8100/v1"}
classes:
  - name: chat
    prompt: {tokens: {fixed: 100}}
    output: {max_tokens: {fixed: 20}}
load:
  - {name: storm, rate: 8/s, classes: {report: 9, chat: 1}, for: 20s}
"""
SHARED = """\
description: What all our mixes send.
classes:
  - name: chat
    prompt: {tokens: {fixed: 1}}
    output: {max_tokens: {fixed: 1}}
  - name: report
    weight: ${WEIGHT:-3}
    prompt: {tokens: {fixed: 500}}
    output: {max_tokens: {fixed: 200}}
"""


def loaded(folder: Path, include: str, *files: tuple[str, str], environ: dict[str, str] | None = None) -> Mix:
    for name, text in (*files, ("mix.yaml", MIX.replace("INCLUDE", include))):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return load_mix(folder / "mix.yaml", environ or {})


def refused(folder: Path, include: str, *files: tuple[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, include, *files)
    return str(caught.value).replace(f"{folder}/", "")


def test_included_classes_come_after_the_own_ones_which_take_their_place_by_name(tmp_path: Path) -> None:
    mix = loaded(tmp_path, "shared.yaml", ("shared.yaml", SHARED), environ={"WEIGHT": "5"})
    assert [(one.name, one.weight, one.prompt.lengths.fixed) for one in mix.classes] == [
        ("chat", 1, 100),
        ("report", 5, 500),
    ]


def test_a_mix_may_have_all_its_classes_from_files(tmp_path: Path) -> None:
    second = "classes: [{name: third, prompt: {tokens: {fixed: 7}}, output: {max_tokens: {fixed: 7}}}]"
    (tmp_path / "a.yaml").write_text(SHARED, encoding="utf-8")
    (tmp_path / "b.yaml").write_text(second, encoding="utf-8")
    text = MIX.replace("INCLUDE", "[a.yaml, b.yaml]")
    text = text[: text.index("classes:")] + text[text.index("load:") :]
    mix = parse_mix(text, source="mix.yaml", environ={}, mix_dir=tmp_path)
    assert [one.name for one in mix.classes] == ["chat", "report", "third"]
    assert parse_mix(mix_to_yaml(mix), source="again", environ={}) == mix


def test_a_mix_needs_a_class_from_somewhere() -> None:
    text = MIX[: MIX.index("classes:")] + MIX[MIX.index("load:") :]
    with pytest.raises(ConfigError, match=r"mix\.yaml:1: the key 'classes' is missing"):
        parse_mix(text.replace("include: INCLUDE\n", ""), source="mix.yaml", environ={})


@pytest.mark.parametrize(
    ("include", "shared", "words"),
    [
        pytest.param(
            "no.yaml", SHARED, "mix.yaml:2: include: cannot read no.yaml: No such file or directory", id="missing"
        ),
        pytest.param(".", SHARED, "mix.yaml:2: include: cannot read .: Is a directory", id="folder"),
        pytest.param(
            "../up.yaml", SHARED, "mix.yaml:2: include: '../up.yaml' is not in the mix's folder", id="outside"
        ),
        pytest.param("/etc/passwd", SHARED, "mix.yaml:2: include: '/etc/passwd' is not in the mix's folder", id="root"),
        pytest.param(
            "[shared.yaml, deep/other.yaml]",
            SHARED,
            "mix.yaml:2: include[1]: deep/other.yaml has a class 'report', and shared.yaml has one too",
            id="twice",
        ),
        pytest.param("7", SHARED, "mix.yaml:2: include: expected text", id="number"),
        pytest.param("shared.yaml", "classes: []", "shared.yaml:1: classes: expected at least one entry", id="empty"),
        pytest.param("shared.yaml", "classes: [", "shared.yaml:2: not YAML", id="no-yaml"),
        pytest.param(
            "shared.yaml",
            SHARED.replace("fixed: 500", "fixd: 500"),
            "shared.yaml:8: classes[1].prompt.tokens.fixd: unknown key; did you mean 'fixed'?",
            id="unknown-key",
        ),
        pytest.param(
            "shared.yaml",
            SHARED.replace("fixed: 500", "fixed: 0"),
            "shared.yaml:8: classes[1].prompt.tokens.fixed: expected a whole number from 1 to 10000000, came 0",
            id="broken-rule-of-the-second-class-there",
        ),
        pytest.param("shared.yaml", MIX, "shared.yaml:1: name: unknown key", id="a-whole-mix"),
    ],
)
def test_a_wrong_include_is_refused_with_file_and_line(tmp_path: Path, include: str, shared: str, words: str) -> None:
    said = refused(tmp_path, include, ("shared.yaml", shared), ("deep/other.yaml", SHARED))
    assert words in said.replace(f"{tmp_path}", ".")


def test_a_mix_without_a_folder_includes_nothing() -> None:
    with pytest.raises(ConfigError, match=r"mix\.yaml:2: include: a mix without a folder cannot include files"):
        parse_mix(MIX.replace("INCLUDE", "shared.yaml"), source="mix.yaml", environ={})
