"""Join strings and the keys behind them."""

from pathlib import Path

import pytest
import zmq

from tokswarm.errors import ConfigError
from tokswarm.worker.join import FleetKeys, Join, fleet_keys, parse_join, public_key, resolve_join, write_secret

KEYS = FleetKeys(server_secret=bytes(range(32)), client_secret=bytes(range(32, 64)))


@pytest.mark.parametrize("host", ["10.0.0.5", "fd00::5", "master.example.org"])
def test_a_join_string_says_where_the_master_is_and_how_it_is_known(host: str) -> None:
    join = parse_join(f"  {KEYS.join(host, 65535).text()}\n")
    assert (join.host, join.port) == (host, 65535)
    assert join.server_public == public_key(KEYS.server_secret)
    assert public_key(join.client_secret) == KEYS.client_public


def test_the_masters_own_secret_is_not_in_a_join_string() -> None:
    join = KEYS.join("h", 1)
    assert KEYS.server_secret not in (join.server_public, join.client_secret)


def test_every_cut_and_every_changed_letter_is_seen_and_the_string_not_quoted() -> None:
    text = KEYS.join("10.0.0.5", 5557).text()
    wrong = [text[:end] for end in range(len(text))]
    wrong += [text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :] for at in range(len(text) - 1)]
    for one in wrong:
        with pytest.raises(ConfigError) as caught:
            parse_join(one)
        assert "tsw1_" not in str(caught.value).replace("begin with tsw1_", "")


def test_secrets_do_not_show_in_what_is_printed() -> None:
    assert repr(KEYS) == "FleetKeys(...)"
    assert repr(KEYS.join("10.0.0.5", 5557)) == "Join(10.0.0.5:5557)"


def test_a_join_string_is_given_itself_or_by_reference(tmp_path: Path) -> None:
    want: Join = KEYS.join("10.0.0.5", 5557)
    write_secret(tmp_path / "join", want.text())
    assert resolve_join(want.text(), {}) == want
    assert resolve_join("env:J", {"J": want.text()}) == want
    assert resolve_join(f"file:{tmp_path / 'join'}", {}) == want
    with pytest.raises(ConfigError, match="environment variable J, which is not set"):
        resolve_join("env:J", {})


def test_keys_are_made_once_and_are_the_owners(tmp_path: Path) -> None:
    path = tmp_path / "state" / "fleet.key"
    keys = fleet_keys(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert fleet_keys(path) == keys
    assert fleet_keys(tmp_path / "other") != keys
    assert [file.name for file in path.parent.iterdir()] == ["fleet.key"]


@pytest.mark.parametrize("content", ["", "no hex", "00" * 63])
def test_a_damaged_key_file_is_named_and_not_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "fleet.key"
    write_secret(path, content)
    with pytest.raises(ConfigError, match="holds no keys"):
        fleet_keys(path)
    assert path.read_text().strip() == content


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.key"
    fleet_keys(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        fleet_keys(path)


def test_this_zeromq_can_encrypt() -> None:
    assert zmq.has("curve")
