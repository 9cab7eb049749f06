import base64
import math
import re
import zlib
from array import array

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from influxdb_client import Point

from tokswarm.measure import schema
from tokswarm.measure.histogram import bucket_of
from tokswarm.measure.record import Outcome, QueueWaitSource, RequestRecord, TokenSource
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WindowRow, WorkerSecond
from tokswarm.sink.line_protocol import TEXT_LIMIT, LineFormatter, escape_tag, escape_text
from tokswarm.sink.record_log import Entry
from tokswarm.sink.token_budget import is_drawn

SENT_UNIX_NS = 1_700_000_000_123_456_789


def record(**changes: object) -> RequestRecord:
    base = RequestRecord(
        request_id=7,
        slot=3,
        class_name="chat",
        stage="sweep-4",
        target="tiny",
        outcome=Outcome.OK,
        planned_ns=500,
        sent_ns=1_500,
        sent_unix_ns=SENT_UNIX_NS,
        done_ns=60_001_500,
    )
    return msgspec.structs.replace(base, **changes)


def arrivals(*offsets_ns: int) -> bytes:
    return array("q", offsets_ns).tobytes()


def counts(*tokens: int) -> bytes:
    return array("I", tokens).tobytes()


Parsed = tuple[str, dict[str, str], dict[str, object], int]


def parse(line: bytes) -> Parsed:
    """Name, tags, fields and time of a line: a slow, obvious parser of line protocol."""
    text = line.decode()
    assert "\n" not in text

    def until(at: int, stops: str) -> tuple[str, int]:
        out = ""
        while at < len(text) and text[at] not in stops:
            if text[at] == "\\" and at + 1 < len(text) and text[at + 1] in ',= "\\':
                at += 1
            out += text[at]
            at += 1
        return out, at

    name, at = until(0, ", ")
    tags: dict[str, str] = {}
    while text[at] == ",":
        key, at = until(at + 1, "=")
        tags[key], at = until(at + 1, ", ")
    fields: dict[str, object] = {}
    while not fields or text[at] == ",":
        key, at = until(at + 1, "=")
        assert key not in fields
        if text[at + 1] == '"':
            fields[key], at = until(at + 2, '"')
            at += 1
        else:
            word, at = until(at + 1, ", ")
            fields[key] = int(word[:-1]) if word.endswith("i") else float(word)
    return name, tags, fields, int(text[at + 1 :])


def parsed(entry: Entry, **options: object) -> list[Parsed]:
    formatter = LineFormatter(run_id="run-1", worker="w0", **options)  # type: ignore[arg-type]
    return [parse(line) for line in formatter.lines(entry)]


def tokens_of(points: list[Parsed]) -> list[Parsed]:
    return [point for point in points if point[0] == "llm_token"]


def test_a_request_has_its_tags_fields_and_time_to_the_letter() -> None:
    whole = record(
        headers_ns=10_001_500,
        first_token_ns=20_001_500,
        first_output_ns=30_001_500,
        last_token_ns=50_001_500,
        connect_ms=0.0005,
        status=200,
        served_by="pod-3",
        prompt_tokens_planned=90,
        prompt_tokens=100,
        max_tokens=64,
        output_tokens=4,
        output_tokens_source=TokenSource.USAGE,
        reasoning_tokens=1,
        cached_tokens=48,
        ideal_cached_tokens=64,
        queue_wait_ms=7.5,
        queue_wait_source=QueueWaitSource.SERVER,
        finish_reason="length",
        slo_met=True,
        merged_arrivals=1,
        arrivals=arrivals(20_000_000, 30_000_400, 50_000_000),
        arrival_tokens=counts(1, 1, 2),
    )
    *_, (name, tags, fields, time) = parsed(whole)
    assert name == "llm_request"
    assert tags == {
        "run": "run-1",
        "worker": "w0",
        "class": "chat",
        "stage": "sweep-4",
        "target": "tiny",
        "outcome": "ok",
    }
    packed = array("q")
    packed.frombytes(zlib.decompress(base64.b64decode(str(fields.pop("itls_us")))))
    assert list(packed) == [20_000, 10_000, 20_000]
    assert fields == {
        "request": 7,
        "ttft_ms": 20.0,
        "ttfo_ms": 30.0,
        "tpot_ms": 10.0,
        "e2e_ms": 60.0,
        "headers_ms": 10.0,
        "connect_ms": 0.0005,
        "schedule_lag_ms": 0.0005,
        "queue_wait_ms": 7.5,
        "queue_wait_source": "server",
        "prompt_tokens": 100,
        "prompt_tokens_planned": 90,
        "max_tokens": 64,
        "output_tokens": 4,
        "output_tokens_source": "usage",
        "reasoning_tokens": 1,
        "cached_tokens": 48,
        "ideal_cached_tokens": 64,
        "slo_met": 1,
        "status": 200,
        "served_by": "pod-3",
        "finish_reason": "length",
        "merged_arrivals": 1,
    }
    assert time == 1_700_000_000_183_450_003  # done in whole ticks of 10 µs, and the slot


def test_token_points_carry_gap_count_index_and_a_time_of_their_own() -> None:
    points = tokens_of(
        parsed(
            record(
                output_tokens=7,
                arrivals=arrivals(0, 20_000_499, 20_000_700, 50_000_000),
                arrival_tokens=counts(1, 2, 3, 1),
            )
        )
    )
    tags = {"run": "run-1", "worker": "w0", "class": "chat"}
    assert points == [
        ("llm_token", tags, {"n": 1, "index": 0, "request": 7}, 1_700_000_000_123_450_003),
        (
            "llm_token",
            tags,
            {"itl_us": 20_000, "n": 5, "index": 1, "request": 7},
            1_700_000_000_143_450_003,
        ),
        (
            "llm_token",
            tags,
            {"itl_us": 29_999, "n": 1, "index": 6, "request": 7},
            1_700_000_000_173_450_003,
        ),
    ]


def test_an_answer_that_did_not_stream_is_one_token_point_at_its_end() -> None:
    points = parsed(record(output_tokens=40))
    assert [(name, fields.get("n"), time) for name, _, fields, time in points] == [
        ("llm_token", 40, 1_700_000_000_183_450_003),
        ("llm_request", None, 1_700_000_000_183_450_003),
    ]


def test_a_request_without_tokens_has_no_token_point_and_no_packed_gaps() -> None:
    [(name, _, fields, _)] = parsed(record(outcome=Outcome.RATE_LIMITED, status=429))
    assert name == "llm_request"
    assert "itls_us" not in fields
    assert "ttft_ms" not in fields


def test_token_points_can_be_left_out_and_the_packed_gaps_stay() -> None:
    [(name, _, fields, _)] = parsed(record(output_tokens=2, arrivals=arrivals(1000, 9000)), token_points=False)
    assert name == "llm_request"
    assert "itls_us" in fields


streams = st.lists(st.tuples(st.integers(0, 60_000), st.integers(1, 9)), min_size=1, max_size=700)


@settings(max_examples=60, deadline=None)
@given(streams=st.lists(streams, min_size=1, max_size=4), start=st.integers(0, 30_000))
def test_tokens_of_open_requests_never_share_a_point_and_sum_exactly(
    streams: list[list[tuple[int, int]]], start: int
) -> None:
    formatter = LineFormatter(run_id="run-1", worker="w0")
    points = []
    for slot, stream in enumerate(streams):
        offsets, at = [], 0
        for gap, _ in stream:
            at += gap
            offsets.append(at)
        tokens = [n for _, n in stream]
        one = record(
            request_id=slot,
            slot=slot,
            sent_unix_ns=SENT_UNIX_NS + start * slot,
            output_tokens=sum(tokens),
            arrivals=arrivals(*offsets),
            arrival_tokens=counts(*tokens),
        )
        mine = tokens_of([parse(line) for line in formatter.lines(one)])
        assert sum(fields["n"] for *_, fields, _ in mine) == one.output_tokens
        seen = 0
        for _, _, fields, _ in mine:
            assert fields["index"] == seen
            seen += int(fields["n"])  # type: ignore[call-overload]
        assert [("itl_us" in fields) for _, _, fields, _ in mine] == [False] + [True] * (len(mine) - 1)
        points += mine
    identities = [(tuple(tags.items()), time) for _, tags, _, time in points]
    assert len(set(identities)) == len(identities)


def test_stamps_that_run_backwards_lose_no_token() -> None:
    points = tokens_of(parsed(record(output_tokens=4, arrivals=arrivals(0, 90_000, 40_000, 200_000))))
    assert [fields["n"] for _, _, fields, _ in points] == [1, 2, 1]
    assert len({time for *_, time in points}) == 3


def test_requests_that_fail_one_after_the_other_in_one_slot_and_tick_stay_apart() -> None:
    formatter = LineFormatter(run_id="run-1", worker="w0")
    times = [
        parse(line)[3]
        for n in range(4)
        for line in formatter.lines(record(request_id=n, outcome=Outcome.CLIENT_LIMIT, sent_unix_ns=SENT_UNIX_NS + n))
    ]
    assert len(set(times)) == 4


def test_a_clock_set_back_does_not_move_later_requests() -> None:
    formatter = LineFormatter(run_id="run-1", worker="w0")
    formatter.lines(record())
    earlier = record(sent_unix_ns=SENT_UNIX_NS - 10**9)
    assert parse(formatter.lines(earlier)[0])[3] == 1_699_999_999_183_450_003


def test_the_same_entry_gives_the_same_lines_each_time() -> None:
    one = record(output_tokens=3, arrivals=arrivals(1, 20_000_000, 40_000_000))
    first = LineFormatter(run_id="run-1", worker="w0").lines(one)
    assert LineFormatter(run_id="run-1", worker="w0").lines(one) == first


def test_pieces_are_the_lines_in_bounded_portions() -> None:
    long = record(output_tokens=5000, arrivals=arrivals(*range(0, 5000 * 20_000, 20_000)))
    pieces = list(LineFormatter(run_id="run-1", worker="w0").pieces(long))
    assert max(map(len, pieces)) <= 256
    assert sum(map(len, pieces)) == 5001


def test_packed_gaps_too_long_for_a_field_are_left_out_and_counted() -> None:
    noise = [n * 1_000_000_007 % 999_983_000 for n in range(40_000)]
    at, offsets = 0, []
    for gap in noise:
        at += gap
        offsets.append(at)
    formatter = LineFormatter(run_id="run-1", worker="w0", token_points=False)
    lines = formatter.lines(record(output_tokens=len(offsets), arrivals=arrivals(*offsets)))
    assert "itls_us" not in parse(lines[-1])[2]
    assert formatter.counts.packs_dropped == 1


def test_a_window_counts_outcomes_and_fills_its_coarse_buckets() -> None:
    row = WindowRow(
        class_name="chat",
        stage="sweep-4",
        started=5,
        offered=6,
        dropped=1,
        late=2,
        finished={"ok": 3, "timeout": 1, "reset": 1},
        in_flight=4,
        output_tokens=90,
        prompt_tokens=300,
        cached_tokens=120,
        ideal_cached_tokens=150,
        ttft={bucket_of(1_500_000): 2, bucket_of(90_000_000_000): 1},
        itl={bucket_of(19_000_000): 7},
    )
    window = Window(worker="w1", second_unix=1_700_000_000, sequence=0, rows=[row])
    [(name, tags, fields, time)] = parsed(window)
    assert (name, time) == ("llm_window", 1_700_000_000_000_000_000)
    assert tags == {"run": "run-1", "worker": "w1", "class": "chat", "stage": "sweep-4"}
    assert {key: value for key, value in fields.items() if "_le_" not in key} == {
        "started": 5,
        "offered": 6,
        "dropped": 1,
        "abandoned_turns": 0,
        "late": 2,
        "finished": 5,
        "failed": 2,
        "in_flight": 4,
        "output_tokens": 90,
        "prompt_tokens": 300,
        "cached_tokens": 120,
        "ideal_cached_tokens": 150,
    }
    assert {key: value for key, value in fields.items() if "_le_" in key and value} == {
        "ttft_le_2ms": 2,
        "ttft_le_inf": 1,
        "itl_le_20ms": 7,
    }


def test_a_fleet_second_a_worker_second_and_an_event_follow_the_schema() -> None:
    fleet = FleetSecond(
        second_unix=1_700_000_000,
        class_name="_all",
        stage="sweep-4",
        workers=2,
        output_tok_per_s=100,
        prompt_tok_per_s=50,
        offered_per_s=3,
        started_per_s=3,
        finished={"ok": 2, "rate_limited": 1, "timeout": 1},
        in_flight=4,
        dropped=0,
        late=0,
        goodput_per_s=None,
        goodput_ratio=None,
        cached_ratio=0.5,
        ideal_cached_ratio=None,
        ttft_p50_ms=12.5,
    )
    [(name, tags, fields, _)] = parsed(fleet)
    assert (name, tags) == ("llm_fleet", {"run": "run-1", "class": "_all", "stage": "sweep-4"})
    assert fields == {
        "workers": 2,
        "output_tok_per_s": 100,
        "prompt_tok_per_s": 50,
        "offered_per_s": 3,
        "started_per_s": 3,
        "finished_per_s": 4,
        "failed_per_s": 2,
        "rate_limited_per_s": 1,
        "in_flight": 4,
        "dropped": 0,
        "abandoned_turns": 0,
        "late": 0,
        "cached_ratio": 0.5,
        "ttft_p50_ms": 12.5,
    }
    second = WorkerSecond(
        worker="w0",
        second_unix=1_700_000_000,
        loop_lag_p99_ms=0.5,
        loop_lag_max_ms=1.5,
        cpu_ratio=0.25,
        schedule_lag_p99_ms=None,
        in_flight=4,
        sockets=5,
        rss_bytes=6,
        log_bytes=7,
        log_lost=8,
        log_removed=5,
        sink_backlog_bytes=9,
        sink_error="refused",
        reads=10,
        merged_arrivals=11,
        unstamped_arrivals=12,
    )
    [(name, tags, fields, _)] = parsed(second)
    assert (name, tags) == ("llm_worker", {"run": "run-1", "worker": "w0"})
    assert fields == {
        "loop_lag_p99_ms": 0.5,
        "loop_lag_max_ms": 1.5,
        "cpu_ratio": 0.25,
        "in_flight": 4,
        "sockets": 5,
        "rss_bytes": 6,
        "log_bytes": 7,
        "log_lost": 8,
        "log_removed": 5,
        "sink_backlog_bytes": 9,
        "reads": 10,
        "merged_arrivals": 11,
        "unstamped_arrivals": 12,
    }
    event = Event(unix_ns=5, kind="stage", title="sweep-4", text='he said "go"', end_unix_ns=1_700_000_000_123_999_999)
    assert parsed(event) == [
        (
            "llm_event",
            {"run": "run-1", "kind": "stage"},
            {"title": "sweep-4", "text": 'he said "go"', "end_ms": 1_700_000_000_123},
            5,
        )
    ]


def test_a_scrape_of_the_server_follows_the_schema() -> None:
    second = ServerSecond(
        unix_ns=1_700_000_000_250_000_000,
        target="tiny",
        replica="127.0.0.1:8011 engine 1",
        up=1,
        engine="vllm",
        waiting=3,
        kv_use_ratio=0.5,
        queue_wait_p99_ms=120.0,
    )
    assert parsed(second) == [
        (
            "llm_server",
            {"run": "run-1", "target": "tiny", "replica": "127.0.0.1:8011 engine 1"},
            {"up": 1, "engine": "vllm", "waiting": 3, "kv_use_ratio": 0.5, "queue_wait_p99_ms": 120.0},
            1_700_000_000_250_000_000,
        )
    ]
    named = ["unix_ns", *schema.SERVER.tags[1:], *(field.name for field in schema.SERVER.fields)]
    assert list(ServerSecond.__struct_fields__) == named


def test_an_event_that_is_given_again_with_its_end_replaces_itself() -> None:
    formatter = LineFormatter(run_id="r", worker="master")
    first, second = (Event(unix_ns=10**18, kind="stage", title=title, text="") for title in ("c4", "c8"))
    ended = [msgspec.structs.replace(event, end_unix_ns=10**18 + 5) for event in (first, second)]
    times = [parse(line)[3] for event in (first, second, *ended) for line in formatter.lines(event)]
    assert times == [10**18, 10**18 + 1, 10**18, 10**18 + 1]


def test_events_of_one_kind_at_one_moment_stay_apart() -> None:
    formatter = LineFormatter(run_id="run-1", worker="master")
    event = Event(unix_ns=10**18, kind="worker-lost", title="w1", text="")
    times = [parse(line)[3] for _ in range(3) for line in formatter.lines(event)]
    assert times == [10**18, 10**18 + 1, 10**18 + 2]


def test_every_point_uses_the_tags_fields_and_types_of_the_schema_and_no_others() -> None:
    types = {
        (measurement.name, field.name): field.type
        for measurement in schema.MEASUREMENTS
        for field in measurement.fields
    }
    tags_of = {measurement.name: set(measurement.tags) for measurement in schema.MEASUREMENTS}
    python_types = {
        schema.FieldType.INTEGER: int,
        schema.FieldType.FLOAT: float,
        schema.FieldType.TEXT: str,
    }
    full = record(
        headers_ns=1,
        connect_ms=1,
        queue_wait_ms=2,
        error="x",
        output_tokens=2,
        first_token_ns=4,
        last_token_ns=4,
        arrivals=arrivals(1, 20_000_000),
    )
    for name, tags, fields, _ in parsed(full):
        assert set(tags) == tags_of[name]
        for field, value in fields.items():
            assert type(value) is python_types[types[name, field]], field


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_the_database_refuses_are_left_out_and_counted(value: float) -> None:
    formatter = LineFormatter(run_id="run-1", worker="w0")
    [line] = formatter.lines(record(processing_ms=value, prompt_tokens=2**63))
    assert {"processing_ms", "prompt_tokens"}.isdisjoint(parse(line)[2])
    assert formatter.counts.values_dropped == 2


def test_long_texts_are_shortened_and_counted() -> None:
    formatter = LineFormatter(run_id="run-1", worker="w0")
    [line] = formatter.lines(record(outcome=Outcome.HTTP_ERROR, error="é" * 10_000))
    text = str(parse(line)[2]["error"])
    assert (len(text), text[-2:]) == (TEXT_LIMIT, "é…")
    assert formatter.counts.texts_shortened == 1


printable = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=30)


@given(printable.filter(lambda text: text and "\\" not in text))
def test_tags_are_escaped_as_the_official_client_does(value: str) -> None:
    want = Point("m").tag("t", value).field("f", 1).time(1).to_line_protocol()
    assert f"m,t={escape_tag(value)} f=1i 1" == want


@given(printable)
def test_texts_are_escaped_as_the_official_client_does(value: str) -> None:
    want = Point("m").field("f", value).time(1).to_line_protocol()
    assert f'm f="{escape_text(value)}" 1' == want


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_mean_the_number_the_official_client_writes(value: float) -> None:
    formatter = LineFormatter(run_id="run-1", worker="w0")
    [line] = formatter.lines(record(connect_ms=value))
    want = Point("m").field("connect_ms", value).time(1).to_line_protocol().split("connect_ms=")[1].split(" ")[0]
    assert parse(line)[2]["connect_ms"] == float(want)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_stays_within_one_line(tag: str, text: str) -> None:
    formatter = LineFormatter(run_id="run-1", worker="w0")
    [line] = formatter.lines(record(target=tag, error=text))
    assert not re.search(rb"[\x00-\x1f\x7f]", line)
    _, tags, fields, _ = parse(line)
    assert fields["error"] == re.sub(r"[\x00-\x1f\x7f]", " ", text).encode("utf-8", "replace").decode()
    assert set(tags) == {"run", "worker", "class", "stage", "outcome"} | ({"target"} if tag else set())


def test_a_request_that_is_not_drawn_has_its_own_point_alone_and_says_so() -> None:
    shares = {}
    for request_id in range(200):
        seen = record(
            request_id=request_id, output_tokens=4, arrivals=arrivals(0, 20_000_000, 40_000_000), token_share=0.25
        )
        lines = parsed(seen)
        [request] = [fields for name, _, fields, _ in lines if name == "llm_request"]
        tokens = tokens_of(lines)
        assert request["share"] == 0.25
        assert request["sampled"] == (1 if tokens else 0)
        assert {fields["share"] for _, _, fields, _ in tokens} <= {0.25}
        shares[request_id] = bool(tokens)
    assert 30 < sum(shares.values()) < 75  # 50 wanted
    assert {request_id for request_id in shares if is_drawn(request_id, 0.25)} == {
        request_id for request_id, drawn in shares.items() if drawn
    }
