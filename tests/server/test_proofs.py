"""Credentials that nobody configured: what the app's own answers prove of them."""

from __future__ import annotations

import pytest

from tests.server.bed import bed
from tests.server.callers import bearer_line, resolver, scope
from tidegate.asgi.identity import UNPROVEN, Caller, Resolver
from tidegate.asgi.proofs import MAX_PATHS, MAX_PATHS_EACH, Proofs
from tidegate.telemetry.events import EventKind

OPEN = "/pooling"
V1 = ("v1", "completions")


def caller(gate: Resolver, *lines: tuple[str, str], path: str = "/v1/completions") -> Caller:
    return gate.resolve(scope(*lines, path=path))


def test_open_server_goes_by_address() -> None:
    """A server that never refuses proves no key, however often it answers 2xx."""
    gate = resolver()
    for number in range(50):
        key = bearer_line(f"random-{number}")
        assert caller(gate, key).tenant == "address-203.0.113.7"
        gate.observed(caller(gate, key), 200)


def test_accepted_key_of_a_closed_server_becomes_a_tenant() -> None:
    """Once the app has refused others; the refused and the new share one tenant."""
    gate = resolver()
    gate.observed(caller(gate, bearer_line("good")), 200)
    gate.observed(caller(gate, bearer_line("bad")), 401)
    good = caller(gate, bearer_line("good"))
    assert good.tenant.startswith("key-")
    assert "good" not in good.tenant
    assert caller(gate, bearer_line("bad")).tenant == UNPROVEN
    assert caller(gate, bearer_line("never seen")).tenant == UNPROVEN
    assert caller(gate).tenant == UNPROVEN
    gate.observed(caller(gate, bearer_line("other")), 200)
    assert caller(gate, bearer_line("other")).tenant not in (good.tenant, UNPROVEN)


def test_the_only_credential_known_to_be_refused_does_not_prove_itself() -> None:
    """It must be others that the app refuses."""
    gate = resolver()
    gate.observed(caller(gate, bearer_line("flaky")), 401)
    gate.observed(caller(gate, bearer_line("flaky")), 200)
    assert caller(gate, bearer_line("flaky")).tenant == UNPROVEN


def test_revoked_key_loses_its_tenant() -> None:
    """What the app refuses now is unproven now."""
    gate = resolver()
    for key, status in (("bad", 401), ("good", 200), ("worse", 401), ("good", 403)):
        gate.observed(caller(gate, bearer_line(key)), status)
    assert caller(gate, bearer_line("good")).tenant == UNPROVEN


def test_server_that_admits_strangers_is_open_again() -> None:
    """A 2xx without credentials shows that keys are not checked."""
    gate = resolver()
    gate.observed(caller(gate, bearer_line("bad")), 401)
    gate.observed(caller(gate), 200)
    assert caller(gate, bearer_line("x")).tenant == "address-203.0.113.7"


def test_a_403_alone_does_not_show_that_keys_are_checked() -> None:
    """Otherwise anyone who can provoke one could prove random keys."""
    gate = resolver()
    gate.observed(caller(gate, bearer_line("a")), 403)
    gate.observed(caller(gate, bearer_line("b")), 200)
    assert caller(gate, bearer_line("b")).tenant == "address-203.0.113.7"


def test_proofs_are_bounded_and_what_is_forgotten_is_unproven() -> None:
    """A million keys leave a bounded memory (case L9)."""
    proofs = Proofs(max_credentials=3)
    proofs.observed("bad", V1, 401)
    for key in "abc":
        proofs.observed(key, V1, 200)
    assert proofs.is_proven("a")  # and is now the most recent
    proofs.observed("d", V1, 200)
    assert [proofs.is_proven(key) for key in "abcd"] == [True, False, True, True]


def test_a_path_the_app_leaves_open_makes_nothing_of_the_others_open() -> None:
    """vLLM checks keys under /v1 and leaves /pooling to anyone: an answer there says nothing of /v1."""
    gate = resolver()
    gate.observed(caller(gate, bearer_line("good")), 200)
    gate.observed(caller(gate, bearer_line("bad")), 401)
    good = caller(gate, bearer_line("good")).tenant
    gate.observed(caller(gate, path=OPEN), 200)
    assert caller(gate, bearer_line("good")).tenant == good
    assert caller(gate, bearer_line("bad")).tenant == UNPROVEN


def test_an_open_path_proves_no_key_whatever_another_path_refuses() -> None:
    """Else whoever makes up a key a request would be a new tenant each time."""
    gate = resolver()
    gate.observed(caller(gate, bearer_line("bad")), 401)
    for number in range(20):
        gate.observed(caller(gate, bearer_line(f"made-up-{number}"), path=OPEN), 200)
        assert caller(gate, bearer_line(f"made-up-{number}"), path=OPEN).tenant == "address-203.0.113.7"
        assert caller(gate, bearer_line(f"made-up-{number}")).tenant == UNPROVEN


def test_a_key_proven_on_one_path_is_proven_on_all() -> None:
    """It is its owner's, wherever it is used."""
    gate = resolver()
    gate.observed(caller(gate, bearer_line("bad")), 401)
    gate.observed(caller(gate, bearer_line("good")), 200)
    assert caller(gate, bearer_line("good"), path=OPEN).tenant == caller(gate, bearer_line("good")).tenant
    assert caller(gate, bearer_line("good"), path=OPEN).tenant.startswith("key-")


@pytest.mark.parametrize("path", ["/V1//completions/", "/v1/./completions", "/v1/completions%0A"])
def test_spellings_of_a_path_are_one_path(path: str) -> None:
    """What is known of it holds for each."""
    gate = resolver()
    gate.observed(caller(gate, bearer_line("bad")), 401)
    assert caller(gate, bearer_line("new"), path=path).tenant == UNPROVEN


def test_made_up_paths_push_no_known_one_out() -> None:
    """An app may answer 401 before it routes, so anybody can make any number of paths refuse."""
    proofs = Proofs()
    proofs.observed("good", V1, 200)
    proofs.observed("bad", V1, 401)
    for number in range(MAX_PATHS + 10):
        proofs.observed("bad", ("v1", str(number), "completions"), 401)
    assert proofs.is_proven("good")
    assert len(proofs._refused) == MAX_PATHS
    proofs.observed("good", ("v1", "embeddings"), 200)
    assert proofs.is_proven("good")
    for number in range(MAX_PATHS):
        proofs.observed("good", (str(number),), 200)
    assert len(proofs._refused) == MAX_PATHS
    assert len(proofs._accepted["good"]) == MAX_PATHS_EACH


def test_the_path_used_least_recently_is_forgotten_first() -> None:
    """An open server with a path for each of its users must not push out what is used all the time."""
    proofs = Proofs()
    proofs.observed("bad", V1, 401)
    for number in range(3 * MAX_PATHS):
        proofs.observed("good", V1, 200)
        proofs.observed(None, (str(number),), 200)
    assert proofs.refuses(V1)


def test_a_caller_a_proxy_names_shows_nothing_of_keys() -> None:
    """The proxy may have taken the key off."""
    gate = resolver(trusted_proxies=("10.0.0.1",), tenant_header="X-Tenant")
    gate.observed(caller(gate, bearer_line("bad")), 401)
    named = gate.resolve(scope(("x-tenant", "new"), client=("10.0.0.1", 1)))
    gate.observed(named, 200)
    assert caller(gate, bearer_line("x")).tenant == UNPROVEN


def test_statuses_that_say_nothing_about_keys_change_nothing() -> None:
    """A 404, a 500 or our own 429 proves nobody."""
    gate = resolver()
    gate.observed(caller(gate, bearer_line("bad")), 401)
    for status in (400, 404, 422, 429, 500, 503):
        gate.observed(caller(gate, bearer_line("key")), status)
    assert caller(gate, bearer_line("key")).tenant == UNPROVEN


async def test_the_gate_tells_apart_the_paths_that_its_app_refuses() -> None:
    """From a real request: the path it went to counts, and no other."""
    async with bed() as b:
        b.app.status = 401
        await b.post()
        for path in ("/v1/completions", "/pooling"):
            await b.post(path=path, headers={"authorization": "Bearer anything"})
        tenants = [event.tenant for event in b.events if event.kind is EventKind.ADMITTED]
    assert tenants[1] == UNPROVEN
    assert tenants[2].startswith("address-")


def test_a_caller_without_headers_is_the_same_by_the_short_way() -> None:
    """Before the app has refused anybody, and after."""
    gate = resolver(trusted_proxies=("203.0.113.7",), tenant_header="X-Tenant", end_user_header="X-User")
    bare = scope()
    assert gate.nameless(bare) == gate.resolve(bare)
    gate.observed(gate.nameless(bare), 401)
    assert gate.nameless(bare) == gate.resolve(bare)
    assert gate.nameless(bare).tenant == UNPROVEN
