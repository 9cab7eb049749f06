"""The load client over TLS: the same answers, certificates checked, sessions resumed."""

import datetime as dt
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from connect_proxy import ConnectProxy, connect_proxy
from scripted_server import Close, Pause, ScriptedServer, scripted_server
from test_wire import END, GOOD, STREAM_HEAD, WHOLE, ask, ask_in_turn, chunk, token

from tokswarm.errors import ConfigError
from tokswarm.measure.record import Outcome
from tokswarm.traffic.mix import Target, Tls
from tokswarm.wire.api import RequestWriter
from tokswarm.wire.client import LoadClient
from tokswarm.wire.exchange import Exchange
from tokswarm.wire.target import ResolvedTarget, https_proxy


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def context_for(authority: trustme.CA, *names: str, expired: bool = False) -> ssl.SSLContext:
    options = {}
    if expired:
        now = dt.datetime.now(dt.UTC)
        options = {"not_before": now - dt.timedelta(days=9), "not_after": now - dt.timedelta(days=2)}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, **options).configure_cert(context)
    return context


@pytest.fixture
def context(authority: trustme.CA) -> ssl.SSLContext:
    return context_for(authority, "localhost")


def client_of(server: ScriptedServer, host: str = "localhost", **tls: object) -> LoadClient:
    spec = Target(base_url=f"https://{host}:{server.port}/v1", model="m", tls=Tls(**tls))
    return LoadClient(ResolvedTarget(spec, {}))


@pytest.fixture
def closing() -> Iterator[list[LoadClient]]:
    clients: list[LoadClient] = []
    yield clients
    for client in clients:
        client.close()


def one(server: ScriptedServer, **tls: object) -> Exchange:
    client = client_of(server, **tls)
    try:
        return ask(client)
    finally:
        client.close()


def test_a_good_stream_is_ok_stamped_by_the_kernel_and_kept(
    context: ssl.SSLContext, ca_file: str, closing: list[LoadClient]
) -> None:
    with scripted_server(GOOD, context=context) as server:
        client = client_of(server, ca_file=ca_file)
        closing.append(client)
        exchanges = ask_in_turn(client, 4)
        assert [each.outcome for each in exchanges] == [Outcome.OK] * 4
        assert [each.reused for each in exchanges] == [False, True, True, True]
        assert sum(each.answer.unstamped_arrivals for each in exchanges) == 0
        assert server.connections == 1


@pytest.mark.parametrize("size", [1, 7, 100, len(WHOLE)])
def test_records_of_any_size_give_the_same_answer(context: ssl.SSLContext, ca_file: str, size: int) -> None:
    parts = [part for at in range(0, len(WHOLE), size) for part in (WHOLE[at : at + size], Pause(0.0002))]
    with scripted_server(parts, context=context) as server:
        exchange = one(server, ca_file=ca_file)
    assert exchange.outcome is Outcome.OK
    assert len(exchange.answer.stamps_ns) == 3


def test_a_large_answer_in_full_records_is_read_whole(context: ssl.SSLContext, ca_file: str) -> None:
    big = chunk(token("x" * 200_000, "stop"))
    with scripted_server([STREAM_HEAD, big, END], context=context) as server:
        assert one(server, ca_file=ca_file).outcome is Outcome.OK


def test_a_large_prompt_is_sent_whole(context: ssl.SSLContext, ca_file: str) -> None:
    text = b"word " * 400_000
    with scripted_server(GOOD, context=context) as server:
        client = client_of(server, ca_file=ca_file)
        try:
            request = RequestWriter(client.target, "m").write(text, max_tokens=3, ignore_eos=False)
            assert client.ask(request, timeout_s=20).outcome is Outcome.OK
        finally:
            client.close()
        assert text in server.requests[0]


def test_later_connections_resume_the_session(context: ssl.SSLContext, ca_file: str, closing: list[LoadClient]) -> None:
    with scripted_server([*GOOD, Close], context=context) as server:
        client = client_of(server, ca_file=ca_file)
        closing.append(client)
        for _ in range(4):
            assert ask_in_turn(client, 1)[0].outcome is Outcome.OK
        settings = client.target.tls
        assert settings is not None
        assert server.connections >= 4
        assert settings.handshakes >= 4
        assert settings.resumed >= settings.handshakes - 2


@pytest.mark.parametrize(
    ("names", "expired", "words"),
    [
        pytest.param(("localhost",), True, "certificate has expired", id="expired"),
        pytest.param(("example.test",), False, "Hostname mismatch", id="another-name"),
    ],
)
def test_a_bad_certificate_is_named(
    authority: trustme.CA, ca_file: str, names: tuple[str, ...], words: str, *, expired: bool
) -> None:
    with scripted_server(GOOD, context=context_for(authority, *names, expired=expired)) as server:
        exchange = one(server, ca_file=ca_file)
    assert exchange.outcome is Outcome.TLS
    assert words in (exchange.error or "")
    assert "is not trusted" in (exchange.error or "")


def test_an_unknown_authority_is_refused_by_default(context: ssl.SSLContext) -> None:
    with scripted_server(GOOD, context=context) as server:
        exchange = one(server)
    assert exchange.outcome is Outcome.TLS
    assert "unable to get local issuer certificate" in (exchange.error or "")


def test_verification_is_off_only_when_asked(context: ssl.SSLContext) -> None:
    with scripted_server(GOOD, context=context) as server:
        assert one(server, verify=False).outcome is Outcome.OK


def test_a_server_that_speaks_plain_http_is_a_tls_failure(ca_file: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = listener.accept()
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        sock.recv(65536)
        sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    spec = Target(base_url=f"https://localhost:{listener.getsockname()[1]}/v1", model="m", tls=Tls(ca_file=ca_file))
    client = LoadClient(ResolvedTarget(spec, {}))
    try:
        exchange = ask(client)
    finally:
        client.close()
        thread.join()
        listener.close()
    assert exchange.outcome is Outcome.TLS
    assert "WRONG_VERSION_NUMBER" in (exchange.error or "")


def test_a_ca_file_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    spec = Target(base_url="https://localhost:1/v1", tls=Tls(ca_file=str(tmp_path / "none.pem")))
    with pytest.raises(ConfigError, match=r"ca_file .*none\.pem"):
        ResolvedTarget(spec, {})


def through(proxy: ConnectProxy, ca_file: str, *, user: str = "", host: str = "endpoint.test") -> Exchange:
    spec = Target(base_url=f"https://{host}/v1", model="m", tls=Tls(ca_file=ca_file))
    client = LoadClient(ResolvedTarget(spec, {"HTTPS_PROXY": f"http://{user}127.0.0.1:{proxy.port}"}))
    try:
        return ask(client)
    finally:
        client.close()


def test_a_proxy_tunnels_to_the_target(authority: trustme.CA, ca_file: str) -> None:
    context = context_for(authority, "endpoint.test")
    with scripted_server(GOOD, context=context) as server, connect_proxy(server.port) as proxy:
        exchange = through(proxy, ca_file, user="me:pass@")
        assert exchange.outcome is Outcome.OK
        assert proxy.asked == [
            b"CONNECT endpoint.test:443 HTTP/1.1\r\nHost: endpoint.test:443\r\n"
            b"Proxy-Authorization: Basic bWU6cGFzcw==\r\n\r\n"
        ]
        assert b"Host: endpoint.test\r\n" in server.requests[0]
        assert b"Proxy-Authorization" not in server.requests[0]


def test_a_proxy_that_refuses_is_named(ca_file: str) -> None:
    with connect_proxy(1, status="407 Proxy Authentication Required") as proxy:
        exchange = through(proxy, ca_file)
    assert exchange.outcome is Outcome.RESET
    assert "the proxy answered CONNECT with 407" in (exchange.error or "")


@pytest.mark.parametrize(
    ("host", "no_proxy", "used"),
    [
        pytest.param("api.example.test", "", True, id="used"),
        pytest.param("api.example.test", "example.test", False, id="suffix"),
        pytest.param("api.example.test", ".example.test,other", False, id="dotted-suffix"),
        pytest.param("notexample.test", "example.test", True, id="no-suffix-of-a-label"),
        pytest.param("api.example.test", "*", False, id="star"),
        pytest.param("localhost", "", False, id="loopback-name"),
        pytest.param("127.0.0.9", "", False, id="loopback-address"),
    ],
)
def test_no_proxy_and_loopback_are_reached_straight(host: str, no_proxy: str, *, used: bool) -> None:
    proxy = https_proxy(host, {"HTTPS_PROXY": "proxy.test:8080", "NO_PROXY": no_proxy})
    assert (proxy == ("proxy.test", 8080, None)) if used else proxy is None
