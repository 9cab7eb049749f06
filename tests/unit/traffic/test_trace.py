"""Traces are read as they are, coarse stamps are spread, and rows that make no sense are refused with their line."""

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokswarm.errors import ConfigError
from tokswarm.traffic.mix import TraceSource
from tokswarm.traffic.replay import cut_replay, part_of_trace, replay_rows
from tokswarm.traffic.trace import TraceRow, read_trace, read_whole_trace
from tokswarm.traffic.units import Duration

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
OWN = '{"at_s": 1.5, "prompt_tokens": 600, "output_tokens": 20, "blocks": [7, 9]}\n'


def mooncake(*rows: tuple[float, int, int, list[int]]) -> str:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return "\n".join(msgspec.json.encode(dict(zip(names, row, strict=True))).decode() for row in rows)


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_mooncake_trace_is_recognised_and_read(tmp_path: Path) -> None:
    path = written(tmp_path, mooncake((100, 1000, 7, [46, 47]), (350, 513, 1, [46, 9]), (400, 5, 2, [])))
    assert read_trace(path, "auto") == [
        TraceRow(offset_ns=0, prompt_tokens=1000, output_tokens=7, blocks=(0, 1)),
        TraceRow(offset_ns=250_000_000, prompt_tokens=513, output_tokens=1, blocks=(0, 2)),
        TraceRow(offset_ns=300_000_000, prompt_tokens=5, output_tokens=2),
    ]


def test_an_azure_trace_is_recognised_and_read_to_the_last_digit(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:17:59.9799600,4808,10\r\n\r\n2023-11-16 18:18:00.0319601,3180,8"
    assert read_trace(written(tmp_path, text), "auto") == [
        TraceRow(offset_ns=0, prompt_tokens=4808, output_tokens=10),
        TraceRow(offset_ns=52_000_100, prompt_tokens=3180, output_tokens=8),
    ]


def test_a_burstgpt_trace_is_recognised_and_its_seconds_are_spread(tmp_path: Path) -> None:
    rows = ("5,ChatGPT,472,18,490,Conversation log", *["45,GPT-4,1087,230,1317,API log"] * 4)
    trace = read_trace(written(tmp_path, BURSTGPT + "\n".join(rows)), "auto")
    assert [(row.prompt_tokens, row.output_tokens) for row in trace] == [(472, 18), *[(1087, 230)] * 4]
    assert [row.offset_ns / 1e9 for row in trace] == [0, 40, 50, 60, 70]


def test_a_bailian_trace_is_recognised_with_its_seconds_and_short_blocks(tmp_path: Path) -> None:
    row = '{"chat_id": %d, "parent_chat_id": -1, "timestamp": %s, "input_length": 33, "output_length": 2, '
    row += '"type": "text", "turn": 1, "hash_ids": [%s]}\n'
    path = written(tmp_path, row % (1, "61.114", "1089, 5, 6") + row % (2, "61.2", "1089, 5, 8"))
    trace = read_whole_trace(path, "auto")
    assert trace.block_tokens == 16
    assert [(row.offset_ns, row.blocks) for row in trace.rows] == [(0, (0, 1, 2)), (86_000_000, (0, 1, 3))]
    replay = cut_replay(trace.rows, TraceSource(file="x", max_prompt_tokens=17), duration_ns=None, block_tokens=16)
    assert replay.block_tokens == 16
    assert list(replay_rows(replay).blocks_of(1)) == [0, 1]


def test_a_trace_of_our_own_is_recognised(tmp_path: Path) -> None:
    path = written(tmp_path, OWN + '{"at_s": 2, "prompt_tokens": 5, "output_tokens": 1}')
    assert read_trace(path, "auto") == [
        TraceRow(offset_ns=0, prompt_tokens=600, output_tokens=20, blocks=(0, 1)),
        TraceRow(offset_ns=500_000_000, prompt_tokens=5, output_tokens=1),
    ]


def test_a_part_of_a_trace_begins_with_its_first_request() -> None:
    rows = [TraceRow(offset_ns=k * 10**9, prompt_tokens=k + 1, output_tokens=1) for k in (0, 3, 5, 50, 52, 90)]
    source = TraceSource(
        file="x", from_=Duration.parse("3s"), until=Duration.parse("90s"), max_gap=Duration.parse("4s")
    )
    part = part_of_trace(rows, source, seed=1)
    assert [(row.offset_ns // 10**9, row.prompt_tokens) for row in part] == [(0, 4), (2, 6), (6, 51), (8, 53)]


def test_the_requests_that_are_kept_do_not_depend_on_the_window() -> None:
    rows = [TraceRow(offset_ns=k * 10**9, prompt_tokens=k + 1, output_tokens=1) for k in range(4000)]
    fifth = [row.prompt_tokens for row in part_of_trace(rows, TraceSource(file="x", keep=0.2), seed=1)]
    later = TraceSource(file="x", keep=0.2, from_=Duration.parse("1000s"))
    assert len(fifth) == pytest.approx(800, abs=100)
    assert [row.prompt_tokens for row in part_of_trace(rows, later, seed=1)] == [k for k in fifth if k > 1000]
    assert [row.prompt_tokens for row in part_of_trace(rows, TraceSource(file="x", keep=0.2), seed=2)] != fifth


def test_requests_stamped_in_coarse_steps_are_spread_over_their_step(tmp_path: Path) -> None:
    stamps = [0, 0, 0, 0, 3000, 3000, 3000, 6000, 6000, 30_000, 30_000, 30_000, 30_000]
    path = written(tmp_path, mooncake(*((stamp, 10, 1, []) for stamp in stamps)))
    offsets_ms = [row.offset_ns / 1e6 for row in read_trace(path, "mooncake")]
    assert offsets_ms[:7] == [0, 750, 1500, 2250, 3000, 4000, 5000]
    # A pause stays a pause: the step before it is as long as the usual one, 3000 ms.
    assert offsets_ms[7:] == [6000, 7500, 30_000, 30_750, 31_500, 32_250]


def test_a_trace_with_its_own_stamps_is_not_spread(tmp_path: Path) -> None:
    path = written(tmp_path, mooncake((0, 10, 1, []), (0, 10, 1, []), (40, 10, 1, []), (277, 10, 1, [])))
    assert [row.offset_ns for row in read_trace(path, "auto")] == [0, 0, 40_000_000, 277_000_000]


@pytest.mark.parametrize(
    ("form", "text", "words"),
    [
        pytest.param("auto", "", "the trace is empty", id="empty"),
        pytest.param(
            "auto", "root:x:0:0", r":1: neither a Mooncake trace .* nor an Azure .* nor a BurstGPT", id="neither"
        ),
        pytest.param(
            "burstgpt", "Timestamp,Model\n5,x", ":1: .* lacks Request tokens, Response tokens", id="burst-header"
        ),
        pytest.param("auto", BURSTGPT + "5,x,1,1,2", ":2: .*expected 6 cells", id="burst-cells"),
        pytest.param("auto", BURSTGPT + "5,x,9,0,9,Conversation log", ":2: a failed request", id="burst-failed"),
        pytest.param("auto", BURSTGPT + "x,x,9,1,9,API log", ":2: Timestamp is no number", id="burst-time"),
        pytest.param("auto", BURSTGPT + "5,x,9,1,9,a\n4,x,9,1,9,a", ":3: Timestamp is before", id="burst-backwards"),
        pytest.param("auto", BURSTGPT + "5,x,0,1,9,a", ":2: Request tokens is not a whole number", id="burst-empty"),
        pytest.param("auto", '{"at_s": 0, "prompt_tokens": 5}', ":1: not a row of a tokswarm trace", id="own-missing"),
        pytest.param("auto", OWN + OWN.replace("1.5", "1.4"), ":2: at_s is before the row above", id="own-backwards"),
        pytest.param("auto", OWN.replace("600", "5"), ":1: 2 hash_ids for input_length 5", id="own-blocks"),
        pytest.param("auto", OWN.replace("600", "0"), ":1: not a row of a tokswarm trace", id="own-no-prompt"),
        pytest.param("bailian", '{"timestamp": -1}', ":1: not a row of a Qwen-Bailian trace", id="bailian"),
        pytest.param("azure", AZURE, "the trace has no rows", id="header-only"),
        pytest.param("azure", "a,b\n1,2", ":1: not the header of an Azure trace", id="wrong-header"),
        pytest.param("auto", AZURE + "2023-11-16 18:17:03,1", ":2: not a row of an Azure trace", id="two-columns"),
        pytest.param("auto", AZURE + "2023-13-16 18:17:03,1,1", ":2: TIMESTAMP is no date and time", id="month-13"),
        pytest.param("auto", AZURE + "2023-11-16 18:17:03,0,1", ":2: ContextTokens is not a whole number", id="none"),
        pytest.param("auto", AZURE + "2023-11-16 18:17:03,1,x", ":2: GeneratedTokens is not a whole", id="no-number"),
        pytest.param(
            "auto",
            AZURE + "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02,1,1",
            ":3: TIMESTAMP is before the row above",
            id="azure-backwards",
        ),
        pytest.param("auto", '{"timestamp": 1', ":1: not a row of a Mooncake trace", id="half-a-row"),
        pytest.param("auto", mooncake((0, 10, 0, [])), r":1: .*>= 1.*output_length", id="no-output"),
        pytest.param("auto", mooncake((0, -1, 5, [])), r":1: .*>= 1.*input_length", id="negative-input"),
        pytest.param("auto", mooncake((-5, 1, 5, [])), r":1: .*>= 0.*timestamp", id="negative-time"),
        pytest.param(
            "auto",
            mooncake((9, 1, 5, []), (8, 1, 5, [])),
            ":2: timestamp goes back from 9 to 8",
            id="mooncake-backwards",
        ),
        pytest.param(
            "auto",
            mooncake((0, 512, 5, [1, 2])),
            ":1: 2 hash_ids for input_length 512, expected at most 1",
            id="too-many-blocks",
        ),
    ],
)
def test_what_is_no_trace_is_refused_with_file_and_line(tmp_path: Path, form: str, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=words) as caught:
        read_trace(path, form)  # type: ignore[arg-type]
    assert str(caught.value).startswith(str(path))
    assert "root:x" not in str(caught.value)


def test_a_binary_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="it is not UTF-8 text"):
        read_trace(tmp_path / "binary", "auto")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_trace(tmp_path, "auto")


def test_a_replay_honours_speed_rows_limits_and_the_stage(tmp_path: Path) -> None:
    rows = [
        TraceRow(offset_ns=k * 10**9, prompt_tokens=100 * k + 500, output_tokens=k + 1, blocks=tuple(range(k)))
        for k in range(10)
    ]
    source = TraceSource(file="x", speed=2, rows=8, max_prompt_tokens=900, max_output_tokens=3)
    replay = cut_replay(rows, source, duration_ns=3_000_000_000)
    columns = replay_rows(replay)
    assert list(columns.due_ns) == [k * 500_000_000 for k in range(6)]
    assert list(columns.prompt_tokens) == [500, 600, 700, 800, 900, 900]
    assert list(columns.output_tokens) == [1, 2, 3, 3, 3, 3]
    assert [list(columns.blocks_of(k)) for k in range(6)] == [[], [0], [0, 1], [0, 1], [0, 1], [0, 1]]
    assert (replay.rows, replay.last_due_ns, replay.prompts_cut, replay.outputs_cut) == (6, 2_500_000_000, 1, 3)
    assert replay.note == "x: of 6 rows, cut to the mix's limits: 1 prompts and 3 outputs"


def test_a_replay_within_its_limits_has_no_note() -> None:
    rows = [TraceRow(offset_ns=0, prompt_tokens=5, output_tokens=5)]
    assert cut_replay(rows, TraceSource(file="x"), duration_ns=None).note == ""


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**13),
            st.integers(1, 10_000_000),
            st.integers(1, 10_000_000),
            st.lists(st.integers(0, 2**31 - 1), max_size=5),
        ),
        max_size=20,
    )
)
def test_a_packed_replay_gives_back_its_rows(drawn: list[tuple[int, int, int, list[int]]]) -> None:
    rows = [
        TraceRow(
            offset_ns=offset, prompt_tokens=max(prompt, 512 * len(blocks)), output_tokens=output, blocks=tuple(blocks)
        )
        for offset, prompt, output, blocks in sorted(drawn)
    ]
    columns = replay_rows(cut_replay(rows, TraceSource(file="x"), duration_ns=None))
    unpacked = [
        TraceRow(
            offset_ns=columns.due_ns[k],
            prompt_tokens=columns.prompt_tokens[k],
            output_tokens=columns.output_tokens[k],
            blocks=tuple(columns.blocks_of(k)),
        )
        for k in range(len(columns.due_ns))
    ]
    assert unpacked == rows


def test_twenty_thousand_long_rows_travel_in_under_two_megabytes() -> None:
    rng = random.Random(1)
    rows = []
    fresh = 0
    for k in range(20_000):
        shared, own = rng.randint(0, 20), rng.randint(1, 30)
        blocks = (*range(shared), *range(fresh, fresh + own))
        fresh += own
        tokens = 512 * len(blocks)
        rows.append(
            TraceRow(
                offset_ns=k * 300_000_000 + rng.randint(0, 10**8),
                prompt_tokens=tokens - rng.randint(0, 511),
                output_tokens=rng.randint(1, 900),
                blocks=blocks,
            )
        )
    assert len(cut_replay(rows, TraceSource(file="x"), duration_ns=None).columns) < 2_000_000
