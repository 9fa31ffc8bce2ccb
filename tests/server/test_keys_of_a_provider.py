"""Keys that a provider knows, through the whole middleware."""

from __future__ import annotations

import hashlib

from tests.server.bed import App, Level, Raw, bearer, bed
from tidegate import AdmissionMiddleware, Settings
from tidegate.asgi.tenant import TenantKeys
from tidegate.telemetry.events import EventKind


async def test_keys_from_a_provider_name_tenants_through_the_middleware() -> None:
    """Asked with the hash of the key, never with the key; its class is the tenant's."""
    asked: list[str] = []

    async def lookup(digest: str) -> TenantKeys | None:
        asked.append(digest)
        known = digest == hashlib.sha256(b"hourly").hexdigest()
        return TenantKeys(name="hourly", priority_class="vip") if known else None

    async with bed() as b:
        gate = AdmissionMiddleware(
            b.app, Settings.load(metrics=False), probe=Level(), keys=lookup, hooks=[b.events.append]
        )
        for key in ("hourly", "hourly", "stranger"):
            raw = Raw(gate, b"{}", bearer(key))
            await raw.task
            assert raw.status == 200
        assert len(asked) == 2
        seen = [(e.tenant, e.priority_class) for e in b.events if e.kind is EventKind.ADMITTED]
        assert seen[:2] == [("hourly", "vip")] * 2
        assert gate._runtime is not None
        await gate._runtime.stop()


async def test_a_required_key_may_come_from_the_provider() -> None:
    """Known there: in; unknown everywhere: 401."""

    async def lookup(digest: str) -> TenantKeys | None:
        known = digest == hashlib.sha256(b"hourly").hexdigest()
        return TenantKeys(name="hourly", priority_class="standard") if known else None

    settings = Settings.load(metrics=False, identity={"require_key": True})
    gate = AdmissionMiddleware(App(), settings, probe=Level(), keys=lookup)
    statuses = []
    for key in ("hourly", "stranger"):
        raw = Raw(gate, b"{}", bearer(key))
        await raw.task
        statuses.append(raw.status)
    assert statuses == [200, 401]
    assert gate._runtime is not None
    await gate._runtime.stop()
