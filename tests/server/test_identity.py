"""Who a caller is: by key, by trusted header, by address, by proof (cases L10, L13, Q11, Q12)."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.server.callers import CLASSES, SECRET, TENANTS, bearer_line, resolver, scope
from tidegate.asgi.addresses import TrustedProxies, parse_address
from tidegate.asgi.credentials import credentials
from tidegate.asgi.identity import Caller, IdentityOptions, TenantKeys


@pytest.mark.parametrize(
    ("line", "tenant"),
    [
        (bearer_line(SECRET), "acme"),
        (("authorization", f"bearer  {SECRET} "), "acme"),
        (("X-Api-Key", "second"), "acme"),
        (("api-key", "hashed"), "beta"),
    ],
)
def test_configured_key_names_the_tenant(line: tuple[str, str], tenant: str) -> None:
    """Plain or hashed in the configuration, in any of the headers that carry keys."""
    caller = resolver().resolve(scope(line))
    assert (caller.tenant, caller.is_configured) == (tenant, True)


@pytest.mark.parametrize(
    "key", [SECRET + "x", SECRET[:-1], SECRET.upper(), hashlib.sha256(b"hashed").hexdigest(), "é"]
)
def test_nearly_right_keys_are_nobodys(key: str) -> None:
    """Only the exact credential counts; its hash is no credential."""
    assert not resolver().resolve(scope(bearer_line(key))).is_configured


def test_a_configured_key_in_any_header_wins_over_an_unknown_one() -> None:
    """A client may carry a dummy Bearer token beside its real x-api-key."""
    assert resolver().resolve(scope(bearer_line("EMPTY"), ("x-api-key", SECRET))).tenant == "acme"


def test_only_the_first_line_of_a_repeated_header_counts() -> None:
    """As frameworks read it, so that we and the app see the same key."""
    request = scope(bearer_line("unknown"), bearer_line(SECRET))
    assert credentials(request["headers"]) == [b"unknown"]
    assert not resolver().resolve(request).is_configured


def test_keys_appear_nowhere() -> None:
    """Not in a caller, a tenant's repr or an error (case L13)."""
    caller = resolver().resolve(scope(bearer_line(SECRET)))
    assert SECRET not in repr(caller) + repr(TENANTS)
    with pytest.raises(ValueError, match="share a key") as caught:
        resolver([*TENANTS, TenantKeys(name="gamma", priority_class="batch", keys=(SECRET,))])
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("key", ["sha256:12", "sha256:" + "g" * 64, "", "  "])
def test_malformed_configured_keys_are_refused(key: str) -> None:
    """At construction, naming the tenant."""
    with pytest.raises(ValueError, match=r"tenants\[x\]\.keys"):
        resolver([TenantKeys(name="x", priority_class="vip", keys=(key,))])


# --- priority ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "got"),
    [
        ([], "vip"),
        (["standard"], "standard"),
        (["batch"], "batch"),
        (["vip"], "vip"),
        (["system"], "vip"),
        ([""], "vip"),
        (["abc"], "vip"),
        (["1e9"], "vip"),
        (["-1"], "vip"),
        (["standard", "batch"], "batch"),
        (["batch", "system"], "batch"),
    ],
)
def test_callers_lower_their_class_and_never_raise_it(wishes: list[str], got: str) -> None:
    """Unknown wishes are no wishes, never an error."""
    lines = [("X-Tidegate-Priority", wish) for wish in wishes]
    assert resolver().resolve(scope(bearer_line(SECRET), *lines)).priority_class == got


def test_lowered_by_the_body() -> None:
    """The same rule for what the body asks (service_tier)."""
    caller = Caller(tenant="t", priority_class="standard")
    assert resolver().lowered(caller, "batch").priority_class == "batch"
    assert resolver().lowered(caller, "vip") is caller
    assert resolver().lowered(caller, None) is caller


# --- headers behind a trusted proxy ------------------------------------------------------------------


def test_tenant_header_counts_only_from_trusted_peers() -> None:
    """Anybody can send a header."""
    gate = resolver(trusted_proxies=("10.0.0.0/8",), tenant_header="X-Tenant")
    line = ("x-tenant", "acme")
    assert gate.resolve(scope(line, client=("10.1.2.3", 1))).tenant == "acme"
    assert gate.resolve(scope(line, client=("10.1.2.3", 1))).priority_class == "vip"
    assert gate.resolve(scope(line, client=("11.1.2.3", 1))).tenant != "acme"
    assert gate.resolve(scope(("x-tenant", "new"), client=("10.1.2.3", 1))).tenant == "header-new"


def test_tenant_header_given_twice_is_nobodys_word() -> None:
    """A proxy that appends instead of replacing must not let callers choose."""
    gate = resolver(trusted_proxies=("10.0.0.1",), tenant_header="X-Tenant")
    request = scope(("x-tenant", "acme"), ("x-tenant", "beta"), client=("10.0.0.1", 1))
    assert gate.resolve(request).tenant.startswith("address-")


def test_end_user_is_believed_from_proxies_and_configured_keys() -> None:
    """It only divides the tenant's own share."""
    gate = resolver(trusted_proxies=("10.0.0.1",), end_user_header="X-User")
    line = ("x-user", "u1")
    assert gate.resolve(scope(line, bearer_line(SECRET))).end_user == "u1"
    assert gate.resolve(scope(line, client=("10.0.0.1", 1))).end_user == "u1"
    assert gate.resolve(scope(line)).end_user is None
    assert gate.resolve(scope(("x-user", "x" * 500), bearer_line(SECRET))).end_user is None


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("203.0.113.7", ["1.2.3.4"], "203.0.113.7"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.9"], "198.51.100.9"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.9"], "198.51.100.9"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.9, 10.0.0.2"], "198.51.100.9"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.9", "10.0.0.2"], "198.51.100.9"),
        ("10.0.0.1", ["6.6.6.6, garbage, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["garbage"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.9:5555"], "198.51.100.9"),
        ("10.0.0.1", ["[2001:db8:1:2::5]:443"], "2001:db8:1:2::/64"),
        ("10.0.0.1", ["2001:db8:1:2:ffff::1"], "2001:db8:1:2::/64"),
        ("10.0.0.1", ["::ffff:198.51.100.9"], "198.51.100.9"),
        ("10.0.0.1", [", ,"], "10.0.0.1"),
        ("10.0.0.1", ["1" * 500], "10.0.0.1"),
        ("10.0.0.1", ["fe80::1%eth0"], "fe80::/64"),
        ("10.0.0.1", ["10.0.0.9, 10.0.0.2"], "10.0.0.9"),
        ("::ffff:10.0.0.1", ["198.51.100.9"], "198.51.100.9"),
        (None, ["198.51.100.9"], "unix"),
        ("testclient", ["198.51.100.9"], "unix"),
    ],
)
def test_caller_address(peer: str | None, forwarded: list[str], expected: str) -> None:
    """Walked from the right, past trusted hops only; IPv6 by its /64."""
    lines = [("x-forwarded-for", value) for value in forwarded]
    client = None if peer is None else (peer, 1)
    assert TrustedProxies(("10.0.0.0/8",)).caller(scope(*lines, client=client)) == expected


def test_unix_socket_peer_may_be_trusted() -> None:
    """Behind a local nginx the peer has no address."""
    request = scope(("x-forwarded-for", "198.51.100.9"), client=None)
    assert TrustedProxies(("unix",)).caller(request) == "198.51.100.9"
    assert TrustedProxies(()).caller(request) == "unix"


@given(st.text(max_size=80))
@settings(deadline=None)
def test_any_hop_is_an_address_or_unreadable(text: str) -> None:
    """No hop raises."""
    parse_address(text)


@given(st.lists(st.ip_addresses().map(str) | st.text(max_size=10), max_size=6))
@settings(deadline=None)
def test_an_untrusted_peer_cannot_choose_its_address(hops: list[str]) -> None:
    """Rotating forged headers does not make new tenants."""
    lines = [("x-forwarded-for", ", ".join(hops).encode("ascii", "replace").decode())]
    assert TrustedProxies(("10.0.0.0/8",)).caller(scope(*lines)) == "203.0.113.7"


@pytest.mark.parametrize(
    "wrong",
    [
        {"trusted_proxies": ("proxy.example",)},
        {"tenant_header": "X Tenant"},
        {"max_credentials": 0},
        {"tenant": 1},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    """With what to write instead."""
    with pytest.raises(ValidationError):
        IdentityOptions(**wrong)


def test_required_key() -> None:
    """Off by default; when on, only configured callers pass."""
    known, unknown = scope(bearer_line(SECRET)), scope(bearer_line("x"))
    assert resolver().is_allowed(resolver().resolve(unknown))
    gate = resolver(require_key=True)
    assert gate.is_allowed(gate.resolve(known))
    assert not gate.is_allowed(gate.resolve(unknown))
    assert not gate.is_allowed(gate.resolve(scope()))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"authorization", b"x-api-key", b"x-forwarded-for"]), st.binary(max_size=40)
        )
    )
)
@settings(deadline=None)
def test_no_headers_break_the_resolver(lines: list[tuple[bytes, bytes]]) -> None:
    """Any bytes give a caller of some class."""
    gate = resolver(trusted_proxies=("203.0.113.0/24",), tenant_header="x-t", end_user_header="x-u")
    got = gate.resolve({"type": "http", "headers": lines, "client": ("203.0.113.7", 1)})
    assert got.priority_class in CLASSES
    assert got.tenant
