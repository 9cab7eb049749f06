"""Links to boards, and what differs between two."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tokswarm.grafana.board_diff import board_changes, rule_changes
from tokswarm.grafana.link import board_links
from tokswarm.grafana.shipped import Span, of_one_run, pinned_to, shipped_boards

BOARDS = [{"uid": "tokswarm-overview", "title": "overview"}, {"uid": "tokswarm-latency", "title": "latency"}]


def test_a_link_opens_a_board_at_the_run_and_a_little_around_it() -> None:
    found = board_links(BOARDS, "https://grafana.example.org/g/", "20261202-1&x", Span(1_000_000, 1_060_000))
    assert [link.title for link in found] == ["overview", "latency"]
    parts = urlsplit(found[0].url)
    assert (parts.netloc, parts.path) == ("grafana.example.org", "/g/d/tokswarm-overview")
    assert parse_qs(parts.query) == {"from": ["995000"], "to": ["1075000"], "var-run": ["20261202-1&x"]}


def test_a_run_that_goes_on_is_linked_up_to_now_and_with_its_data_source() -> None:
    [link, _] = board_links(BOARDS, "http://g", "r", Span(1_000_000, None), data_source_uid="mine")
    assert parse_qs(urlsplit(link.url).query) == {
        "from": ["995000"],
        "to": ["now"],
        "var-run": ["r"],
        "var-ds": ["mine"],
    }


BOARD = {
    "id": None,
    "title": "b",
    "panels": [{"title": "one", "unit": "ms"}, {"title": "two", "targets": [{"refId": "A", "query": "q"}]}],
}


@pytest.mark.parametrize(
    ("stored", "lines"),
    [
        pytest.param({**BOARD, "id": 7, "version": 3}, [], id="its-own-keys-are-grafanas"),
        pytest.param({**BOARD, "title": "c"}, ['~ title: "c" becomes "b"'], id="title"),
        pytest.param({**BOARD, "panels": BOARD["panels"][:1]}, ["+ panels/two: 'two'"], id="a-panel-more"),
        pytest.param(
            {**BOARD, "panels": [*BOARD["panels"], {"title": "mine"}]}, ["- panels/mine: 'mine'"], id="a-panel-less"
        ),
        pytest.param(
            {**BOARD, "panels": [BOARD["panels"][0], {"title": "two", "targets": [{"refId": "A", "query": "p"}]}]},
            ['~ panels/two/targets/A/query: "p" becomes "q"'],
            id="a-query",
        ),
        pytest.param({**BOARD, "panels": BOARD["panels"][::-1]}, ["~ panels: in another order"], id="order"),
        pytest.param({**BOARD, "refresh": "1s"}, ['- refresh: "1s"'], id="a-key-less"),
    ],
)
def test_what_differs_is_said_where_people_find_it(stored: dict[str, object], lines: list[str]) -> None:
    assert board_changes(stored, BOARD) == lines


def test_keys_that_grafana_adds_to_rules_are_no_change() -> None:
    wanted = {"interval": 10, "rules": [{"uid": "a", "title": "t", "for": "0s"}]}
    stored = {"interval": 10, "rules": [{"uid": "a", "title": "t", "for": "0s", "id": 5, "isPaused": False}]}
    assert rule_changes(stored, wanted) == []
    stored["rules"][0]["for"] = "1m"  # type: ignore[index]
    assert rule_changes(stored, wanted) == ['~ rules/t/for: "1m" becomes "0s"']


def test_a_pinned_board_has_no_choice_of_data_source_left() -> None:
    for board in shipped_boards():
        pinned = pinned_to(board, "mine")
        assert "${ds" not in str(pinned)
        assert [each["name"] for each in pinned["templating"]["list"]] == [
            each["name"] for each in board["templating"]["list"] if each["name"] != "ds"
        ]
        assert "${ds" in str(board)


def test_boards_of_one_run_leave_nothing_to_choose_and_stand_beside_the_others() -> None:
    made = [of_one_run(board, "20261202-1.demo", Span(1_000_000, 1_060_000)) for board in shipped_boards()]
    boards = [pinned_to(board, "mine") for board in made if board is not None]
    # Two runs to compare and a request to look at are choices.
    assert len(boards) == len(shipped_boards()) - 2
    for board in boards:
        assert board["templating"]["list"] == board["links"] == []
        queries = [target["query"] for panel in board["panels"] for target in panel.get("targets", [])]
        assert queries
        assert all(
            set(re.findall(r"\$(\w+)", query)) <= {"timeFilter", "__interval", "__interval_ms"} for query in queries
        )
        assert all("/^20261202-1\\.demo$/" in query for query in queries)
        assert board["time"] == {"from": "1970-01-01T00:16:40.000Z", "to": "1970-01-01T00:17:40.000Z"}
        assert re.fullmatch(r"[a-z0-9-]{8,40}", board["uid"])
        assert board["title"].endswith(", 20261202-1.demo")
    assert not {board["uid"] for board in boards} & {board["uid"] for board in shipped_boards()}
