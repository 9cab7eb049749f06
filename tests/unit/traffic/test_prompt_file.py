"""Files of users' own prompts are read strictly, and what is wrong is told with its line."""

from pathlib import Path

import polars as pl
import pytest

from tokswarm.errors import ConfigError
from tokswarm.traffic import prompt_file
from tokswarm.traffic.mix import PromptRows
from tokswarm.traffic.mixfile import parse_mix
from tokswarm.traffic.prompt_file import plan_prompts, read_prompts
from tokswarm.traffic.prompt_template import Template

QUESTION = "Answer briefly: {question}"
MIX = """\
name: sample
target: {base_url: http://127.0.0.1:8100/v1}
classes:
  - name: chat
    prompt: {rows: {file: %s}}
    output: {max_tokens: {fixed: 20}}
load:
  - {concurrency: 1, for: 5s}
"""


def write(folder: Path, name: str, text: str) -> PromptRows:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return PromptRows(file=name)


def refused(rows: PromptRows, folder: Path | None) -> str:
    with pytest.raises(ConfigError) as caught:
        read_prompts(rows, folder)
    return str(caught.value).replace(f"{folder}/", "")


def test_json_lines_become_prompts_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", '{"prompt": "one\\n\\"two\\"", "id": 3}\r\n\n{"prompt": "日本"}\n')
    assert read_prompts(PromptRows(file="a.jsonl"), tmp_path) == ['one\n"two"', "日本"]
    assert read_prompts(PromptRows(file="a.jsonl", field="prompt"), tmp_path) == ['one\n"two"', "日本"]


def test_a_csv_keeps_line_breaks_in_quotes_and_its_mark_at_the_start_is_no_text(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", '\ufeffquestion,n\r\n"two\nlines, at \u2028 least",1\r\n\r\nshort,2\r\n')
    rows = PromptRows(file="a.csv", template="{n}: {question} {{sic}}")
    assert read_prompts(rows, tmp_path) == ["1: two\nlines, at \u2028 least {sic}", "2: short {sic}"]


def test_parquet_becomes_the_same_prompts_as_json_lines(tmp_path: Path) -> None:
    pl.DataFrame({"question": ["why?", "how?"], "n": [1, 2], "other": [[1], [2]]}).write_parquet(tmp_path / "a.parquet")
    rows = PromptRows(file="a.parquet", template="{question} ({n})")
    assert read_prompts(rows, tmp_path) == ["why? (1)", "how? (2)"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        pytest.param("a.jsonl", '{"prompt": "a"}\n{"prompt": }\n', "a.jsonl:2: this is no JSON: ", id="no-json"),
        pytest.param("a.jsonl", '["a"]\n', "a.jsonl:1: expected an object such as", id="no-object"),
        pytest.param(
            "a.jsonl", '\n{"promt": "a"}', "a.jsonl:2: there is no 'prompt'; did you mean 'promt'?", id="no-key"
        ),
        pytest.param("a.jsonl", '{"prompt": ["a"]}', "a.jsonl:1: 'prompt' is a list, expected text", id="a-list"),
        pytest.param("a.jsonl", '{"prompt": null}', "a.jsonl:1: 'prompt' is nothing, expected text", id="null"),
        pytest.param("a.jsonl", '{"prompt": true}', "a.jsonl:1: 'prompt' is true or false, expected text", id="a-bool"),
        pytest.param("a.jsonl", '{"prompt": " "}', "a.jsonl:1: the prompt is empty", id="blank"),
        pytest.param("a.jsonl", "\n\n", "a.jsonl: there are no prompts in it", id="no-rows"),
        pytest.param("a.csv", "prompt\n", "a.csv: there are no prompts in it", id="a-header-only"),
        pytest.param("a.csv", "", "a.csv:1: there is no column 'prompt'", id="an-empty-csv"),
        pytest.param("a.csv", "promt,b\n", "a.csv:1: there is no column 'prompt'; did you mean 'promt'?", id="column"),
        pytest.param("a.csv", "prompt,prompt\n", "a.csv:1: there are several columns 'prompt'", id="twice"),
        pytest.param(
            "a.csv",
            'prompt,b\n"x\ny",1\nz\n',
            "a.csv:4: expected 2 cells as in the header, came 1",
            id="a-short-row-after-a-long-cell",
        ),
        pytest.param("a.csv", 'prompt\n"open\n', "a.csv:2: this is no CSV: ", id="an-open-quote"),
        pytest.param("a.txt", "a\n", "a.txt: expected a file ending in .jsonl, .csv, .parquet", id="suffix"),
        pytest.param("a.parquet", "no", "a.parquet: cannot be read as Parquet", id="no-parquet"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_never_quoted(tmp_path: Path, name: str, text: str, words: str) -> None:
    assert refused(write(tmp_path, name, text), tmp_path).startswith(words)


def test_rows_of_parquet_are_named_by_their_number(tmp_path: Path) -> None:
    pl.DataFrame({"prompt": ["why?", None]}).write_parquet(tmp_path / "a.parquet")
    assert refused(PromptRows(file="a.parquet"), tmp_path) == "a.parquet: row 2: 'prompt' is nothing, expected text"
    assert refused(PromptRows(file="a.parquet", field="x"), tmp_path) == (
        "a.parquet: there is no column 'x' (expected one of prompt)"
    )


def test_text_of_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"prompt\n\xff\n")
    assert refused(PromptRows(file="a.csv"), tmp_path) == "a.csv: cannot read the prompts: it is not UTF-8 text"


def test_only_files_in_the_folder_of_the_mix_are_read(tmp_path: Path) -> None:
    inside = tmp_path / "mixes"
    inside.mkdir()
    write(tmp_path, "a.jsonl", '{"prompt": "a secret"}')
    for file in ("../a.jsonl", str(tmp_path / "a.jsonl")):
        assert refused(PromptRows(file=file), inside) == f"{file!r} is not in the mix's folder"
    (inside / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    assert refused(PromptRows(file="link.jsonl"), inside) == "'link.jsonl' is not in the mix's folder"
    assert refused(PromptRows(file="no.jsonl"), inside) == "there is no file no.jsonl"
    assert refused(PromptRows(file="a.jsonl"), None) == "a mix without a folder cannot name files"


def test_more_text_than_can_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_file, "MOST_TEXT_BYTES", 10)
    write(tmp_path, "a.jsonl", '{"prompt": "12345"}\n' * 3)
    assert refused(PromptRows(file="a.jsonl"), tmp_path).startswith("a.jsonl:3: the prompts of this file are more than")
    write(tmp_path, "b.jsonl", '{"prompt": "123456789"}')
    mix = parse_mix(MIX % "b.jsonl", source="mix.yaml", environ={}, mix_dir=tmp_path)
    with pytest.raises(ConfigError, match="the prompts of the classes are"):
        plan_prompts(mix, tmp_path)


def test_a_mix_with_prompts_of_its_own_knows_about_how_long_they_are(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", '{"prompt": "word word word word word word word word word"}\n{"prompt": "hi"}\n')
    mix = parse_mix(MIX % "a.jsonl", source="mix.yaml", environ={}, mix_dir=tmp_path)
    assert mix.classes[0].prompt.lengths.choice == {2: 1.0, 13: 1.0}
    given = MIX % "a.jsonl, lengths: {fixed: 70}"
    assert parse_mix(given, source="m", environ={}, mix_dir=tmp_path).classes[0].prompt.lengths.fixed == 70


def test_a_mistake_in_a_file_of_prompts_is_told_with_the_line_of_the_mix(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", '{"prompt": 1}\n{"prompt": {}}\n')
    with pytest.raises(ConfigError) as caught:
        parse_mix(MIX % "a.jsonl", source="mix.yaml", environ={}, mix_dir=tmp_path)
    assert str(caught.value).replace(f"{tmp_path}/", "") == (
        "mix.yaml:5: classes[0].prompt.rows.file: a.jsonl:2: 'prompt' is an object, expected text"
    )


def test_a_template_fills_columns_by_name() -> None:
    template = Template("{a} and {{b}} and {b c}{a}")
    assert template.columns == ["a", "b c"]
    assert template.filled({"a": "1", "b c": "{2}"}) == "1 and {b} and {2}1"


def test_a_field_may_have_any_name(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "{odd}: name\nyes\n")
    assert read_prompts(PromptRows(file="a.csv", field="{odd}: name"), tmp_path) == ["yes"]
