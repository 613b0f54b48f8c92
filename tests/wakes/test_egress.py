"""Which addresses a call may reach, and that it reaches those and no others."""

import ipaddress

import pytest

from config.kernel.outgoing import Allowed, is_allowed_entry, is_public, parse_url
from relay.wakes.client import Call, Client
from relay.wakes.codes import CallFailedError, Code
from relay.wakes.lookups import Lookups
from tests.wakes.authority import Authority
from tests.wakes.servers import Answer, HttpServer

PRIVATE = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255
127.0.0.1 127.255.255.255 168.63.129.16 169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255
192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1
203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
64:ff9b::127.0.0.1 64:ff9b::a00:1 64:ff9b::169.254.169.254 64:ff9b:1::1 100::1
2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:10::1 2001:20::1 2001:db8::1
2002:7f00:1:: 2002:a00:1:: 2002:c0a8:1::1 2002:a9fe:a9fe:: 3fff::1 4000::1 5f00::1
fc00::1 fd00:ec2::254 fd20:ce::254 fe80::1 fe80::1%1 febf::1 fec0::1 ff02::1 ff0e::1
"""
PUBLIC = """
1.1.1.1 9.255.255.255 11.0.0.0 93.184.216.34 100.63.255.255 100.128.0.0 126.255.255.255
128.0.0.0 168.63.129.15 168.63.129.17 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0
192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255
2001:200::1 2001:4860:4860::8888 2606:4700::1111 2a00:1450::1 2002:101:101::1
64:ff9b::1.1.1.1 ::ffff:1.1.1.1
"""


def test_an_address_is_public_or_it_is_refused() -> None:
    assert [text for text in PRIVATE.split() if is_public(ipaddress.ip_address(text))] == []
    assert [text for text in PUBLIC.split() if not is_public(ipaddress.ip_address(text))] == []


def test_the_operator_may_name_hosts_and_networks() -> None:
    allowed = Allowed.parse(
        ["gateway.internal", "10.1.0.0/16", "192.168.7.7", "fd00::/64", "[::1]"]
    )
    private, other = ipaddress.ip_address("10.1.2.3"), ipaddress.ip_address("10.2.2.3")
    assert allowed.lets_through(host="anything.example", address=private)
    assert not allowed.lets_through(host="anything.example", address=other)
    assert allowed.lets_through(host="gateway.internal", address=other)
    assert not allowed.lets_through(host="x.gateway.internal", address=other)
    assert allowed.lets_through(host="x", address=ipaddress.ip_address("192.168.7.7"))
    assert allowed.lets_through(host="x", address=ipaddress.ip_address("fd00::5"))
    assert allowed.lets_through(host="x", address=ipaddress.ip_address("::1"))
    assert allowed.names("gateway.internal")
    assert allowed.names("10.1.2.3")
    assert not allowed.names("gateway.example")
    assert not allowed.names("10.2.2.3")


def test_what_is_neither_host_nor_network_is_no_exception() -> None:
    entries = ["bad host", "10.0.0.0/33", "10.1.2.3/8", "x/y", "*.example", "127.1", ""]
    assert [entry for entry in entries if is_allowed_entry(entry)] == []
    assert is_allowed_entry("gateway.internal")


def test_the_origin_leaves_out_the_usual_port() -> None:
    origins = {
        "https://Push.Example.net/x": "https://push.example.net",
        "https://push.example.net:443": "https://push.example.net",
        "https://push.example.net:8443/x?y": "https://push.example.net:8443",
        "http://push.example.net:443/": "http://push.example.net:443",
        "https://[2606:4700:0::1111]:444/": "https://[2606:4700::1111]:444",
    }
    found = {url: target.origin for url in origins if (target := parse_url(url))}
    assert found == origins


class Zone:
    """A name server of ours: each name has its answers, one a lookup, the last one for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self._answers = answers
        self.lookups = 0

    def __call__(self, host: str, port: int) -> list[str]:
        self.lookups += 1
        answers = self._answers[host.partition(".")[0]]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def client_of(zone: Zone, *allowed: str, authority: Authority | None = None) -> Client:
    return Client(
        allowed=Allowed.parse(allowed),
        lookups=Lookups(resolve=zone),
        ca_file=None if authority is None else authority.file,
    )


def post(client: Client, url: str) -> int:
    return client.post(Call(url, {}, b"{}"), seconds=3).status


def code_of(client: Client, url: str) -> Code:
    with pytest.raises(CallFailedError) as caught:
        post(client, url)
    return caught.value.code


def test_a_name_that_leads_to_a_private_address_is_not_called() -> None:
    with HttpServer() as server:
        client = client_of(Zone(evil=[["127.0.0.1"]]))
        assert code_of(client, server.url(host="evil.test")) is Code.REFUSED_ADDRESS
        assert code_of(client, server.url()) is Code.REFUSED_ADDRESS
        assert server.connections == 0


def test_a_name_that_answers_differently_later_is_called_where_it_was_checked() -> None:
    """DNS rebinding: the check and the connection use one and the same answer."""
    with (
        HttpServer(address="127.0.0.2") as good,
        HttpServer(address="127.0.0.3", port=good.port) as secret,
    ):
        zone = Zone(rebind=[["127.0.0.2"], ["127.0.0.3"]])
        client = client_of(zone, "127.0.0.2")
        assert post(client, good.url(host="rebind.test")) == 201
        assert (zone.lookups, len(good.received), secret.connections) == (1, 1, 0)
        client.close()  # a new connection is a new lookup, and a new check
        assert code_of(client, good.url(host="rebind.test")) is Code.REFUSED_ADDRESS
        assert (zone.lookups, secret.connections) == (2, 0)


def test_the_private_ones_among_several_addresses_are_left_out() -> None:
    with (
        HttpServer(address="127.0.0.2") as good,
        HttpServer(address="127.0.0.3", port=good.port) as secret,
    ):
        zone = Zone(mixed=[["127.0.0.3", "127.0.0.2"]])
        assert post(client_of(zone, "127.0.0.2"), good.url(host="mixed.test")) == 201
        assert secret.connections == 0


def test_an_address_where_nobody_listens_is_not_the_end() -> None:
    with HttpServer(address="127.0.0.2") as good:
        zone = Zone(two=[["127.0.0.9", "::1", "127.0.0.2"]])
        client = client_of(zone, "127.0.0.0/8", "::1")
        assert post(client, good.url(host="two.test")) == 201


def test_a_redirect_is_not_followed() -> None:
    with HttpServer() as secret, HttpServer(address="127.0.0.2") as server:
        for status in (301, 302, 303, 307, 308):
            answer = Answer(status, {"Location": secret.url()})
            server.answer = lambda received, answer=answer: answer
            assert post(client_of(Zone(), "127.0.0.0/8"), server.url()) == status
        assert len(server.received) == 5
        assert secret.connections == 0


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpServer() as proxy, HttpServer(address="127.0.0.2") as server:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert post(client_of(Zone(), "127.0.0.0/8"), server.url()) == 201
        assert proxy.connections == 0


def test_the_certificate_is_checked_against_the_name_although_an_address_is_called(
    authority: Authority,
) -> None:
    zone = Zone(push=[["127.0.0.2"]], other=[["127.0.0.2"]])
    client = client_of(zone, "127.0.0.2", authority=authority)
    with HttpServer(address="127.0.0.2", tls=authority.server_context("push.test")) as server:
        assert post(client, server.url(host="push.test")) == 201
        assert server.received[0].headers["host"] == f"push.test:{server.port}"
        assert code_of(client, server.url(host="other.test")) is Code.TLS
        assert code_of(client, server.url()) is Code.TLS
        untrusting = client_of(zone, "127.0.0.2")
        assert code_of(untrusting, server.url(host="push.test")) is Code.TLS
        assert len(server.received) == 1


def test_the_name_goes_along_in_the_handshake(authority: Authority) -> None:
    named: list[str | None] = []
    context = authority.server_context("push.test")
    context.sni_callback = lambda socket, name, context: named.append(name)
    with HttpServer(address="127.0.0.2", tls=context) as server:
        client = client_of(Zone(push=[["127.0.0.2"]]), "127.0.0.2", authority=authority)
        assert post(client, server.url(host="push.test")) == 201
    assert named == ["push.test"]


def test_a_name_that_nobody_knows_is_told_apart() -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise OSError

    client = Client(allowed=Allowed(), lookups=Lookups(resolve=unknown))
    assert code_of(client, "https://nowhere.test/") is Code.DNS
