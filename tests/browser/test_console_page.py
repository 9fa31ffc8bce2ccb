"""The operator's page in Chromium: what it shows, what it survives, what it never runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.browser.fake_gate import FakeGate, instance, statistics
from tests.browser.serving import serving
from tidegate import processes
from tidegate.console import ConsoleOptions
from tidegate.core.statistics import ClassStatistics, TenantStatistics

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def gate() -> AsyncIterator[FakeGate]:
    """A gate with one minute behind it; its streams end with the test."""
    gate = FakeGate(ConsoleOptions())
    gate.live_through(60)
    yield gate
    gate.console.close()


@pytest_asyncio.fixture(loop_scope="session")
async def url(gate: FakeGate) -> AsyncIterator[str]:
    """Its operator's page."""
    async with serving(gate.app, lifespan="off") as base:
        yield f"{base}/tidegate/"
        gate.console.close()


async def look(page: Page, url: str) -> None:
    """Opens the page and waits for the first state."""
    await page.goto(url)
    await page.wait_for_selector("html[data-ready]")


async def test_figures_follow_the_gate_live(page: Page, gate: FakeGate, url: str) -> None:
    """The level, the queue and the state are on the page, and change within one event."""
    await look(page, url)
    await expect(page.locator(".tank .level")).to_have_text("73")
    await expect(page.locator(".tank .mark.high")).to_have_attribute("data-words", "watermark 95 %")
    await expect(page.locator("#queued")).to_have_text("137")
    await expect(page.locator("#gate")).to_have_text("open")
    await expect(page.locator("#refusals li").first).to_have_text("queue full612")
    await expect(page.locator("#tenants tbody tr").first).to_contain_text("nightly-eval")
    await expect(page.locator("#tenants tbody tr").first).to_contain_text("118")
    gate.tick(is_open=False, queued=150, instances=(instance(level=0.961),))
    await expect(page.locator("#gate")).to_have_text("holding")
    await expect(page.locator(".tank .level")).to_have_text("96")
    await expect(page.locator(".tank")).to_have_attribute("data-mood", "high")
    await expect(page.locator("#queued")).to_have_text("150")
    await expect(page).to_have_title("holding · Tidegate")


async def test_plots_have_the_history(page: Page, gate: FakeGate, url: str) -> None:
    """The lines are drawn from the first event on; one more second is one more point."""
    await look(page, url)
    path = page.locator("#level-plot .line.level")
    before = (await path.get_attribute("d") or "").count("L")
    assert before == 60
    gate.tick()
    await expect(page.locator("#link")).to_have_text("live")
    await page.wait_for_function(
        """least => {
            const line = document.querySelector("#level-plot .line.level");
            return line.getAttribute("d").split("L").length > least;
        }""",
        arg=before + 1,
    )


async def test_blind_is_not_empty(page: Page, gate: FakeGate, url: str) -> None:
    """A lost signal shows a question mark and says so; it is never drawn as an empty tank at 0 %."""
    await look(page, url)
    gate.tick(instances=(instance(level=None, state="blind", age_s=42.0, capacity_tokens=None),))
    await expect(page.locator("#gate")).to_have_text("signal blind")
    await expect(page.locator(".tank .level")).to_have_text("?")
    await expect(page.locator(".tank .water")).to_be_hidden()
    await expect(page.locator("#instances")).to_contain_text("unknown")
    await expect(page.locator(".tank")).to_have_attribute(
        "aria-label", "engine-0: KV level unknown, signal blind, 42 s old"
    )


async def test_a_disputed_capacity_shows_both_figures(page: Page, gate: FakeGate, url: str) -> None:
    """The one in force, and what the engine states."""
    await look(page, url)
    row: dict[str, Any] = {
        "capacity_disputed": True,
        "stated_capacity_tokens": 32_768,
        "learnt_capacity_tokens": 16_384,
    }
    gate.tick(instances=(instance(**row),))
    await expect(page.locator("#instances")).to_contain_text("16,384 (disputed: the engine states 32,768)")


async def test_several_instances_come_and_go(page: Page, gate: FakeGate, url: str) -> None:
    """Each instance has its tank; one that leaves takes it along."""
    await look(page, url)
    gate.tick(instances=tuple(instance(f"e{n}", level=n / 4) for n in range(4)))
    await expect(page.locator(".tank")).to_have_count(4)
    gate.tick(instances=(instance("e2"), instance("e9")))
    await expect(page.locator(".tank .name")).to_have_text(["e2", "e9"])


async def test_silence_is_said(page: Page, gate: FakeGate, url: str) -> None:
    """When no event comes the page says that its figures are old."""
    await page.clock.install(time=1_700_000_000)
    await page.clock.pause_at(1_700_000_100)
    await look(page, url)
    await page.clock.run_for(8_000)
    await expect(page.locator("#link")).to_have_text("no news from the server")
    gate.tick()
    await expect(page.locator("#link")).to_have_text("live")


async def test_shadow_mode_is_unmistakable(page: Page, gate: FakeGate, url: str) -> None:
    """Nobody should think that a shadow gate protects anything."""
    gate.mode = "shadow"
    await look(page, url)
    await expect(page.locator("#mode")).to_have_text("shadow mode: nothing is held back")


async def test_one_worker_of_several_says_so(page: Page, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are not the whole server's."""
    monkeypatch.setattr(processes, "workers", lambda: 4)
    await look(page, url)
    await expect(page.locator("#mode")).to_contain_text("one of 4 workers")


async def test_faults_of_the_gate_come_first(page: Page, gate: FakeGate, url: str) -> None:
    """A gate that fails inside must not look open and well; a minute later it may again."""
    await look(page, url)
    gate.faults.count = 5
    gate.tick()
    await expect(page.locator("#gate")).to_have_text("5 gate faults")
    for _ in range(61):
        gate.tick()
    await page.reload()
    await expect(page.locator("#gate")).to_have_text("open")


async def test_names_are_text(page: Page, gate: FakeGate, url: str) -> None:
    """Tenant, class, instance and reason names with markup are shown as written and never run."""
    evil = "<img src=x onerror=window.hacked=1>"
    await look(page, url)
    gate.tick(
        tenants=(TenantStatistics(name=evil, priority_class=evil, queued=1, running=1, virtual_tokens=0.0),),
        classes=(ClassStatistics(name=evil, queued=1, running=1, oldest_wait_s=0.0, kv_ceiling=1.0),),
        instances=(instance(evil),),
        refused={evil: 3},
    )
    for place in ("#tenants", "#classes", "#instances", "#tanks"):
        await expect(page.locator(place)).to_contain_text(evil)
    await expect(page.locator("#refusals")).to_contain_text("<img src=x")
    assert await page.evaluate("window.hacked") is None
    assert await page.locator("main img").count() == 0


async def test_extreme_figures_fit(page: Page, gate: FakeGate, url: str) -> None:
    """Millions, zeros and names without spaces neither break the page nor make it scroll sideways."""
    gate.now = statistics(
        queued=8_765_432,
        running=0,
        admitted=10**12,
        refused={"a_reason_with_a_very_long_name_that_somebody_made": 10**9},
        instances=(instance("n" * 90, projected_peak_tokens=9e9, level=1.0),),
    )
    gate.tick()
    await look(page, url)
    for width in (1440, 800, 360):
        await page.set_viewport_size({"width": width, "height": 800})
        overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"{overflow} px too wide at {width}"


async def test_stopping_server_is_not_held_up(gate: FakeGate, page: Page) -> None:
    """An open page does not keep a server from stopping once the console is closed."""
    async with serving(gate.app, lifespan="off") as base:
        await look(page, f"{base}/tidegate/")
        gate.console.close()
    await expect(page.locator("#link")).to_have_text("no news from the server")
