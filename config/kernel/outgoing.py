"""Where outgoing calls may go: URLs, addresses, and the operator's exceptions.

A device tells us an address that we shall call, so a hostile one may try to make us call our
own network (SSRF). Two rules answer that. A URL is read by one strict grammar, so that no two
parsers can disagree about its host. And whatever address a name resolves to is judged here,
by an allow-list of what is public, before anything connects to it.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LONGEST_URL = 2048
_DEFAULT_PORTS = {"https": 443, "http": 80}
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9.-]+))"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?:[/?](?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?",
    re.ASCII,
)
#: A last label that some resolvers take for a number: 127.1, 0x7f000001, 2130706433 …
_NUMERIC = re.compile(r"(?:[0-9]+|0[xX][0-9A-Fa-f]*)", re.ASCII)

# What is special among the addresses of IPv4 (IANA's registry, RFC 6890), and those of clouds
# that answer with credentials. 169.254.169.254, 100.100.100.200 and 192.0.0.192 are within.
_SPECIAL_4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network, the unspecified address
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's wire server, although public
        "169.254.0.0/16",  # link-local
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT relays
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
#: Of IPv6 only global unicast is public; all else (loopback, fc00::/7, fe80::/10, ff00::/8,
#: ::/96, 64:ff9b:1::/48 …) is outside it.
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_6TO4 = ipaddress.IPv6Network("2002::/16")


@dataclass(frozen=True)
class Target:
    """What a URL names: where to connect. The host is in lower case and without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def origin(self) -> str:
        """Scheme, host, and the port unless it is the scheme's own (RFC 6454)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


def parse_url(text: str) -> Target | None:
    """Where this http(s) URL leads, or None: it has a user name, a fragment, a strange host …

    A host is a DNS name in ASCII or an address in its usual form: forms that only some
    resolvers read as an address (`127.1`, `0x7f.1`) are none.
    """
    match = _URL.fullmatch(text) if len(text) <= LONGEST_URL else None
    if match is None:
        return None
    port = int(match["port"] or _DEFAULT_PORTS[match["scheme"]])
    host = _host(match["host"], match["six"])
    if host is None or port > 65_535:
        return None
    return Target(match["scheme"], host, port)


def _host(name: str | None, six: str | None) -> str | None:
    if name is None:
        address = literal(six or "")
        return str(address) if isinstance(address, ipaddress.IPv6Address) else None
    if len(name) > 253 or _NAME.fullmatch(name) is None:
        return None
    if _NUMERIC.fullmatch(name.rpartition(".")[2]) and literal(name) is None:
        return None
    return name.lower()


def literal(host: str) -> Address | None:
    """The address that a host is, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet, an IPv4 one inside it (RFC 4291, 6052,
    3056) judged as well."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _SPECIAL_4)
    if address in _MAPPED or address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    if address in _6TO4:
        return is_public(ipaddress.IPv4Address(int(address) >> 80 & 0xFFFF_FFFF))
    return address in _GLOBAL_6 and not any(address in network for network in _SPECIAL_6)


@dataclass(frozen=True)
class Allowed:
    """The operator's exceptions: hosts and networks that calls may reach although private."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> "Allowed":
        """From WAKE_EGRESS_ALLOW. Raises ValueError for what is neither."""
        hosts, networks = set(), []
        for entry in entries:
            if "/" in entry or literal(entry.strip("[]")) is not None:
                networks.append(ipaddress.ip_network(entry.strip("[]")))
            elif (host := _host(entry, None)) is not None:
                hosts.add(host)
            else:
                raise ValueError(entry)
        return cls(frozenset(hosts), tuple(networks))

    def names(self, host: str) -> bool:
        """Whether this very host is listed, by name or, for an address, by network."""
        address = literal(host)
        return host in self.hosts if address is None else self._covers(address)

    def lets_through(self, *, host: str, address: Address) -> bool:
        """Whether a call to `host` may connect to `address`, to which that resolved."""
        return is_public(address) or host in self.hosts or self._covers(address)

    def _covers(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def is_allowed_entry(text: str) -> bool:
    """Whether a text can stand in a list of exceptions."""
    try:
        Allowed.parse([text])
    except ValueError:
        return False
    return True


def is_gateway_url(text: str, allowed: Allowed) -> bool:
    """https anywhere; http only to a host that the exceptions name (PROTOCOL section 7)."""
    target = parse_url(text)
    return target is not None and (target.scheme == "https" or allowed.names(target.host))
