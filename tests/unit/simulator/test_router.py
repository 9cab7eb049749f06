"""Which replica a request goes to."""

from collections.abc import Hashable

import pytest

from tokswarm.simulator.deployment import Routing
from tokswarm.simulator.router import Router

KEYS = ("a", "b", "c")


class Server:
    """A replica made of numbers."""

    def __init__(self, in_flight: int = 0, cached: int = 0, region: str | None = None) -> None:
        self.in_flight = in_flight
        self.cached = cached
        self.region = region

    def cached_blocks(self, block_keys: tuple[Hashable, ...]) -> int:
        assert block_keys == KEYS
        return self.cached


def places(routing: Routing, servers: list[Server], times: int, *, region: str | None = None) -> list[int]:
    router = Router(routing, load_guard=4)
    return [servers.index(router.choose(servers, KEYS, region)) for _ in range(times)]


def test_round_robin_takes_turns_whatever_the_load() -> None:
    assert places(Routing.ROUND_ROBIN, [Server(9), Server(0), Server(5)], 5) == [0, 1, 2, 0, 1]


def test_least_loaded_goes_where_the_fewest_are_and_equals_take_turns() -> None:
    assert places(Routing.LEAST_LOADED, [Server(3), Server(1), Server(2)], 3) == [1, 1, 1]
    assert places(Routing.LEAST_LOADED, [Server(2), Server(2), Server(2)], 4) == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("servers", "place"),
    [
        pytest.param([Server(0, 1), Server(4, 3), Server(1, 2)], 1, id="longest-prefix"),
        pytest.param([Server(0, 1), Server(5, 3), Server(1, 2)], 0, id="beyond-the-guard-the-least-loaded"),
        pytest.param([Server(3, 2), Server(1, 2), Server(2, 0)], 1, id="of-equal-prefixes-the-less-loaded"),
        pytest.param([Server(3), Server(2), Server(1)], 2, id="nothing-cached-is-least-loaded"),
    ],
)
def test_prefix_aware_follows_the_cache_within_its_guard(servers: list[Server], place: int) -> None:
    assert places(Routing.PREFIX_AWARE, servers, 3) == [place] * 3


def test_asked_region_is_preferred_and_no_condition() -> None:
    servers = [Server(region="eu"), Server(region="us"), Server(region="us")]
    assert set(places(Routing.ROUND_ROBIN, servers, 6, region="us")) == {1, 2}
    assert set(places(Routing.ROUND_ROBIN, servers, 6, region="ap")) == {0, 1, 2}
