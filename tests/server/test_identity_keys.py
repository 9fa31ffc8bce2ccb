"""Keys from a provider: cached, bounded, and never in the way."""

from __future__ import annotations

import asyncio
import hashlib
import logging

import pytest

from tests.server.callers import bearer_line, scope
from tidegate.asgi.identity import IdentityOptions, Resolver
from tidegate.asgi.keys import ASK_AGAIN_S, COMPLAIN_EVERY_S, CachedKeys, CannotTell
from tidegate.asgi.tenant import TenantKeys

HOURLY = TenantKeys(name="hourly", priority_class="vip")


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class Provider:
    """A scripted provider: what it knows, how often it was asked, whether it hangs or fails."""

    def __init__(self) -> None:
        self.now = 0.0
        self.owners = {hashed("k"): HOURLY}
        self.asked: list[str] = []
        self.go = asyncio.Event()
        self.go.set()
        self.error: Exception | None = None

    async def lookup(self, credential_hash: str) -> TenantKeys | None:
        self.asked.append(credential_hash)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return self.owners.get(credential_hash)

    def cached(self, *, max_entries: int = 10, timeout_s: float = 5.0) -> CachedKeys:
        return CachedKeys(
            self.lookup,
            clock=lambda: self.now,
            ttl_s=100.0,
            unknown_ttl_s=10.0,
            timeout_s=timeout_s,
            max_entries=max_entries,
            max_lookups=2,
        )


async def test_answers_are_believed_for_their_time() -> None:
    """An owner longer than a miss; then the provider is asked again, and a withdrawn key ends."""
    provider = Provider()
    keys = provider.cached()
    assert await keys.owner(hashed("k")) is HOURLY
    assert await keys.owner(hashed("no")) is None
    provider.now = 9.9
    await keys.owner(hashed("k")), await keys.owner(hashed("no"))
    assert len(provider.asked) == 2
    provider.owners = {hashed("no"): HOURLY}
    provider.now = 10.0
    assert await keys.owner(hashed("no")) is HOURLY
    assert await keys.owner(hashed("k")) is HOURLY
    provider.now = 100.0
    assert await keys.owner(hashed("k")) is None


async def test_callers_of_one_key_share_a_lookup() -> None:
    """Also when the first of them leaves."""
    provider = Provider()
    keys = provider.cached()
    provider.go.clear()
    tasks = [asyncio.create_task(keys.owner(hashed("k"))) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks[0].cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    provider.go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[1:] == [HOURLY] * 4
    assert len(provider.asked) == 1


async def test_a_broken_provider_leaves_the_last_answer_in_force(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody known is turned away, nobody unknown gets in, and it is logged without the key."""
    provider = Provider()
    keys = provider.cached()
    await keys.owner(hashed("k"))
    provider.now, provider.error = 200.0, RuntimeError("down")
    with caplog.at_level(logging.ERROR, "tidegate"):
        assert await keys.owner(hashed("k")) is HOURLY
        with pytest.raises(CannotTell):
            await keys.owner(hashed("no"))
    assert hashed("k") not in caplog.text
    asked = len(provider.asked)
    await keys.owner(hashed("k"))
    with pytest.raises(CannotTell):
        await keys.owner(hashed("no"))
    assert len(provider.asked) == asked, "not asked again at once"
    provider.now, provider.error = 200.0 + ASK_AGAIN_S, None
    assert await keys.owner(hashed("no")) is None


async def test_a_provider_that_is_down_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """It fails once for every key that comes, and a trace of each would bury all else."""
    provider = Provider()
    keys, provider.error = provider.cached(max_entries=100), RuntimeError("down")
    with caplog.at_level(logging.ERROR, "tidegate"):
        for number in range(50):
            with pytest.raises(CannotTell):
                await keys.owner(hashed(str(number)))
        assert len(caplog.records) == 1
        assert caplog.records[0].getMessage().startswith("Tidegate: The provider of keys failed")
        provider.now = COMPLAIN_EVERY_S
        with pytest.raises(CannotTell):
            await keys.owner(hashed("0"))
    assert len(caplog.records) == 2


async def test_a_hanging_provider_is_given_up() -> None:
    """Within its time-out."""
    provider = Provider()
    provider.go.clear()
    with pytest.raises(CannotTell):
        await provider.cached(timeout_s=0.01).owner(hashed("k"))


async def test_lookups_and_memory_are_bounded() -> None:
    """Random keys neither pile up lookups nor entries; beyond the bound nothing can be told."""
    provider = Provider()
    keys = provider.cached(max_entries=3)
    provider.go.clear()
    tasks = [asyncio.create_task(keys.owner(hashed(str(n)))) for n in range(10)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(provider.asked) == 2
    assert sum(task.done() for task in tasks) == 8
    provider.go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [type(None)] * 2 + [CannotTell] * 8
    provider.owners |= {hashed(f"y{number}"): HOURLY for number in range(20)}
    for number in range(20):
        await keys.owner(hashed(f"x{number}"))
        await keys.owner(hashed(f"y{number}"))
    assert (len(keys._owners), len(keys._strangers), len(keys._failed)) == (3, 3, 0)


async def test_strangers_push_no_owner_out() -> None:
    """However many invented keys come between; and a key in use stays, whatever its age."""
    provider = Provider()
    keys = provider.cached(max_entries=3)
    provider.owners |= {hashed(name): HOURLY for name in ("a", "b", "c")}
    await keys.owner(hashed("k"))
    for number in range(20):
        await keys.owner(hashed(f"x{number}"))
        await keys.owner(hashed("k"))
        await keys.owner(hashed("abc"[number % 3]))
    assert provider.asked.count(hashed("k")) == 1


async def test_a_withdrawn_key_becomes_a_strangers() -> None:
    """And the other way round."""
    provider = Provider()
    keys = provider.cached()
    await keys.owner(hashed("k"))
    provider.owners, provider.now = {hashed("no"): HOURLY}, 100.0
    assert await keys.owner(hashed("k")) is None
    assert await keys.owner(hashed("no")) is HOURLY
    assert (len(keys._owners), len(keys._strangers)) == (1, 1)


@pytest.mark.parametrize("header", ["x-api-key", "api-key"])
async def test_one_key_that_cannot_be_told_hides_no_other(header: str) -> None:
    """A request may carry two."""
    provider = Provider()
    keys = provider.cached()
    await keys.owner(hashed("k"))
    provider.error = RuntimeError("down")
    resolver = Resolver(
        [], IdentityOptions(require_key=True), classes=["vip"], default_class="vip", keys=keys
    )
    assert (await resolver.identify(scope(bearer_line("other"), (header, "k")))).tenant == "hourly"
    with pytest.raises(CannotTell):
        await resolver.identify(scope(bearer_line("other")))


async def test_the_resolver_asks_for_unknown_keys_only() -> None:
    """Configured keys cost no lookup; an unknown class falls back to the default one."""
    provider = Provider()
    provider.owners[hashed("odd")] = TenantKeys(name="odd", priority_class="nonesuch")
    resolver = Resolver(
        [TenantKeys(name="acme", priority_class="vip", keys=("configured",))],
        IdentityOptions(require_key=True),
        classes=("vip", "standard", "batch"),
        default_class="standard",
        keys=provider.cached(),
    )
    assert (await resolver.identify(scope(bearer_line("configured")))).tenant == "acme"
    assert (await resolver.identify(scope())).is_configured is False
    assert provider.asked == []
    caller = await resolver.identify(
        scope(bearer_line("EMPTY"), ("x-api-key", "k"), ("x-tidegate-priority", "batch"))
    )
    assert (caller.tenant, caller.priority_class, caller.credential_hash) == ("hourly", "batch", hashed("k"))
    assert resolver.is_allowed(caller)
    odd = await resolver.identify(scope(bearer_line("odd")))
    assert (odd.tenant, odd.priority_class) == ("odd", "standard")
    unknown = await resolver.identify(scope(bearer_line("nobody")))
    assert unknown == resolver.resolve(scope(bearer_line("nobody")))
