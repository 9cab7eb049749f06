"""Engines, ranks, models and replicas in one text are told apart or added up, whichever is right."""

import pytest

from tokswarm.measure.server_second import ServerSecond
from tokswarm.scrape.part_names import PartNames
from tokswarm.scrape.rates import server_second
from tokswarm.scrape.reading import MAX_PARTS, read_text


def points(before: str, after: str, *, elapsed_s: float = 1.0) -> dict[str, ServerSecond]:
    """By name of the part."""
    first, second = read_text(before), read_text(after)
    names = PartNames("h:1")
    return {
        (name := names.name(part, second.parts)): server_second(
            reading, first.parts.get(part), elapsed_s=elapsed_s, unix_ns=1, target="t", replica=name
        )
        for part, reading in second.parts.items()
    }


def vllm(engine: str, *, waiting: int, generated: int, model: str = "m") -> str:
    labels = f'engine="{engine}",model_name="{model}"'
    return (
        f"vllm:num_requests_waiting{{{labels}}} {waiting}\nvllm:generation_tokens_total{{{labels}}} {generated}\n"
        f'vllm:cache_config_info{{engine="{engine}",num_gpu_blocks="10",block_size="16"}} 1\n'
    )


def test_engines_of_one_server_are_points_of_their_own_and_what_has_no_engine_is_one_more() -> None:
    def text(generated: int) -> str:
        rejected = f'vllm:admission_rejections_total{{model_name="m",reason="r"}} {generated}\n'
        return vllm("0", waiting=1, generated=generated) + vllm("1", waiting=2, generated=2 * generated) + rejected

    found = points(text(100), text(150))
    assert {name: (each.waiting, each.generation_tok_per_s, each.rejected_per_s) for name, each in found.items()} == {
        "h:1 engine 0": (1, 50, None),
        "h:1 engine 1": (2, 100, None),
        "h:1": (None, None, 50),
    }
    assert [found[f"h:1 engine {number}"].kv_capacity_tokens for number in (0, 1)] == [160, 160]


def test_a_single_engine_takes_what_names_no_engine_and_has_the_name_of_its_server() -> None:
    found = points("", vllm("0", waiting=1, generated=5) + 'vllm:admission_rejections_total{model_name="m"} 3\n')
    assert list(found) == ["h:1"]


def test_models_of_one_server_are_told_apart() -> None:
    text = vllm("0", waiting=1, generated=5, model="a") + vllm("0", waiting=2, generated=5, model="b")
    assert {name: each.waiting for name, each in points("", text).items() if each.waiting is not None} == {
        "h:1 model_name a": 1,
        "h:1 model_name b": 2,
    }


def test_data_parallel_ranks_are_told_apart_and_tensor_parallel_ones_count_once() -> None:
    text = "".join(
        f'sglang:num_queue_reqs{{model_name="m",dp_rank="{dp}",tp_rank="{tp}"}} {waiting}\n'
        for dp, tp, waiting in ((0, 0, 3), (0, 1, 3), (1, 0, 5), (1, 1, 5))
    )
    assert {name: each.waiting for name, each in points("", text).items()} == {"h:1 dp_rank 0": 3, "h:1 dp_rank 1": 5}


def test_replicas_in_one_text_have_their_own_names_from_the_first_on() -> None:
    one = 'vllm:num_requests_waiting{model_name="m",engine="0",replica="a"} 1\n'
    names = PartNames("h:1")
    alone = read_text(one).parts
    assert [names.name(part, alone) for part in alone] == ["h:1 a"]
    both = read_text(one + one.replace('"a"', '"b"')).parts
    assert [names.name(part, both) for part in both] == ["h:1 a", "h:1 b"]


def test_a_part_keeps_its_name_when_another_joins() -> None:
    names = PartNames("h:1")
    alone, both = (
        read_text(vllm("0", waiting=1, generated=1)).parts,
        read_text(vllm("0", waiting=1, generated=1) + vllm("1", waiting=1, generated=1)).parts,
    )
    assert [names.name(part, alone) for part in alone] == ["h:1"]
    assert [names.name(part, both) for part in both] == ["h:1", "h:1 engine 1"]


def test_a_gateway_and_a_server_in_one_text_are_two_points() -> None:
    found = points("", vllm("0", waiting=1, generated=1) + "litellm_in_flight_requests 4\n")
    assert {name: (each.engine, each.waiting, each.running) for name, each in found.items()} == {
        "h:1 vllm": ("vllm", 1, None),
        "h:1 litellm": ("litellm", None, 4),
    }


def test_a_text_of_too_many_parts_is_one_point_of_their_sum() -> None:
    text = "".join(vllm(str(number), waiting=2, generated=1) for number in range(MAX_PARTS + 1))
    assert {name: each.waiting for name, each in points("", text).items()} == {"h:1": 2 * (MAX_PARTS + 1)}


def test_a_counter_that_fell_began_anew_and_a_series_that_is_new_began_at_nothing() -> None:
    before = vllm("0", waiting=0, generated=1000)
    after = vllm("0", waiting=0, generated=40) + (
        'vllm:request_success_total{engine="0",model_name="m",finished_reason="stop"} 6\n'
    )
    [point] = points(before, after, elapsed_s=2.0).values()
    assert (point.generation_tok_per_s, point.finished_per_s) == (20, 3)


def test_a_histogram_that_began_anew_counts_what_it_has_observed_since() -> None:
    def text(below: int, whole: int, total_s: float) -> str:
        name = "vllm:request_queue_time_seconds"
        return (
            f'{name}_bucket{{engine="0",model_name="m",le="0.3"}} {below}\n'
            f'{name}_bucket{{engine="0",model_name="m",le="0.5"}} {whole}\n'
            f'{name}_bucket{{engine="0",model_name="m",le="+Inf"}} {whole}\n'
            f'{name}_sum{{engine="0",model_name="m"}} {total_s}\n{name}_count{{engine="0",model_name="m"}} {whole}\n'
        )

    [point] = points(text(1, 50, 20.0), text(4, 8, 2.8)).values()
    assert point.queue_wait_mean_ms == pytest.approx(350)
    assert point.queue_wait_p50_ms == pytest.approx(300)
    assert point.queue_wait_p90_ms == pytest.approx(460)


def test_the_first_text_and_a_part_that_joins_have_no_rates() -> None:
    after = vllm("0", waiting=1, generated=9) + vllm("1", waiting=2, generated=9)
    found = points(vllm("0", waiting=1, generated=5), after)
    assert {name: (each.waiting, each.generation_tok_per_s) for name, each in found.items()} == {
        "h:1 engine 0": (1, 4),
        "h:1 engine 1": (2, None),
    }


def test_nothing_observed_has_no_mean_and_no_lookups_no_share() -> None:
    text = (
        'vllm:request_queue_time_seconds_sum{model_name="m"} 1\n'
        'vllm:request_queue_time_seconds_count{model_name="m"} 1\n'
        'vllm:prefix_cache_queries_total{model_name="m"} 5\nvllm:prefix_cache_hits_total{model_name="m"} 5\n'
    )
    [point] = points(text, text).values()
    assert (point.queue_wait_mean_ms, point.queue_wait_p99_ms, point.hit_ratio) == (None, None, None)


def test_waits_far_below_the_first_bound_are_told_by_their_mean() -> None:
    def text(count: int, total_s: float) -> str:
        name = "vllm:request_queue_time_seconds"
        return (
            f'{name}_bucket{{model_name="m",le="0.3"}} {count}\n{name}_bucket{{model_name="m",le="+Inf"}} {count}\n'
            f'{name}_sum{{model_name="m"}} {total_s}\n{name}_count{{model_name="m"}} {count}\n'
        )

    [point] = points(text(0, 0), text(10, 0.05)).values()
    assert point.queue_wait_p50_ms == pytest.approx(5)
    assert point.queue_wait_p99_ms == pytest.approx(9.9)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param('[{"iter": 1, "gpuMemUsage": 5}]', id="TensorRT-LLM's JSON"),
        pytest.param("http_requests_total 5\nprocess_start_time_seconds 7\n", id="no engine"),
        pytest.param('prompt_tokens_total{model="x"} 5\n', id="a name anybody may use"),
        pytest.param('vllm:num_requests_waiting{model_name="m} 5\nvllm:num_requests_running NaN', id="broken"),
    ],
)
def test_texts_without_an_engine_have_no_parts_that_say_anything(text: str) -> None:
    assert [reading.gauges for reading in read_text(text).parts.values()] in ([], [{}])
