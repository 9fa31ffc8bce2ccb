"""What the log says of faults, of states that end, and of a trial in shadow mode."""

from __future__ import annotations

import logging

import pytest

from tests.server.bed import Level, bed
from tidegate.core.reading import InvalidReading, Reading
from tidegate.core.statistics import Statistics
from tidegate.telemetry.events import AdmissionEvent, EventKind
from tidegate.telemetry.log import FAULT_INTERVAL_S, MOST_FAULTS, LogHook
from tidegate.testing import FakeClock


def fault(where: str = "offer", error: Exception | None = None) -> AdmissionEvent:
    """One as the fault policy tells it, raised so that it has a trace."""
    try:
        raise error or KeyError(5)
    except Exception as raised:  # noqa: BLE001 - it is the thing told
        return AdmissionEvent(kind=EventKind.FAULT, reason=where, detail=repr(raised), error=raised)


def signal(reason: str) -> AdmissionEvent:
    return AdmissionEvent(kind=EventKind.SIGNAL, instance="a", reason=reason)


@pytest.mark.parametrize(
    ("root", "own", "becomes"),
    [
        (logging.ERROR, logging.NOTSET, logging.WARNING),
        (logging.WARNING, logging.NOTSET, logging.NOTSET),
        (logging.INFO, logging.NOTSET, logging.NOTSET),
        (logging.ERROR, logging.ERROR, logging.ERROR),
        (logging.ERROR, logging.DEBUG, logging.DEBUG),
    ],
)
async def test_warnings_are_shown_though_others_have_silenced_the_root(
    monkeypatch: pytest.MonkeyPatch, root: int, own: int, becomes: int
) -> None:
    """As a package does that vLLM's API server imports; a level that is meant for us is left alone."""
    ours = logging.getLogger("tidegate")
    monkeypatch.setattr(logging.getLogger(), "level", root)
    monkeypatch.setattr(ours, "level", own)
    ours.manager._clear_cache()  # type: ignore[attr-defined]  # levels are remembered
    try:
        async with bed() as b:
            await b.post()
        assert ours.level == becomes
        assert ours.isEnabledFor(logging.WARNING) == (own < logging.ERROR)
    finally:
        monkeypatch.undo()
        ours.manager._clear_cache()  # type: ignore[attr-defined]


async def test_a_fault_of_ours_leaves_its_trace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The alert asks for it: without a trace nobody can say where a KeyError came from."""

    def planted_in_the_gate(*args: object) -> None:
        raise KeyError(5)

    async with bed() as b:
        monkeypatch.setattr(b.runtime.room.gate, "offer", planted_in_the_gate)
        assert (await b.post()).status_code == 200
    assert "Tidegate: fault in offer: KeyError: 5." in caplog.text
    assert "Traceback" in caplog.text
    assert "planted_in_the_gate" in caplog.text


def test_the_same_fault_is_traced_once_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A stream may fail twenty times a second; what was left out is counted."""
    clock = FakeClock()
    hook = LogHook(clock)
    for _ in range(20):
        hook(fault())
    hook(fault("stream"))
    hook(fault(error=ValueError("other")))
    assert [record.exc_info is not None for record in caplog.records] == [True] * 3
    clock.advance(FAULT_INTERVAL_S)
    hook(fault())
    assert "19 more of the kind" in caplog.messages[-1]


def test_kinds_of_faults_remembered_are_bounded() -> None:
    """Wherever they come from."""
    hook = LogHook(FakeClock())
    for number in range(MOST_FAULTS * 3):
        hook(fault(f"place {number}"))
    assert len(hook._traced_at) <= MOST_FAULTS


def test_the_end_of_a_bad_state_is_as_loud_as_its_beginning(caplog: pytest.LogCaptureFixture) -> None:
    """Servers print warnings only; a start that is fresh at once needs no line."""
    hook = LogHook(FakeClock())
    with caplog.at_level(logging.WARNING, "tidegate"):
        for state in ("fresh", "blind", "fresh"):
            hook(signal(state))
    assert [line.partition(". ")[0] for line in caplog.messages] == [
        "Tidegate: Signal of a is now blind",
        "Tidegate: Signal of a is now fresh.",
    ]
    assert "tidegate check" in caplog.messages[0]


async def test_the_source_of_the_level_is_said_at_start(caplog: pytest.LogCaptureFixture) -> None:
    """Among the lines that a server prints by itself."""
    from tests.server.bed import App
    from tidegate import AdmissionMiddleware, Settings

    settings = Settings.load(metrics=False, probe={"urls": "http://127.0.0.1:9/metrics"})
    gate = AdmissionMiddleware(App(), settings=settings)
    with caplog.at_level(logging.WARNING, "tidegate"):
        runtime = gate._running()
        await runtime.stop()
    assert "Tidegate: the level comes from Prometheus text at http://127.0.0.1:9/metrics" in caplog.text


async def test_the_line_of_a_refusal_names_the_request_as_its_caller_knows_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the id of its answer, which is the caller's own where it gave one; whatever refused it."""
    async with bed(fields={"max_parallel": 1}) as b:
        with caplog.at_level(logging.DEBUG, "tidegate"):
            bad = await b.post({"prompt": "x", "n": 9}, headers={"x-request-id": "from-support"})
            b.runtime.drain()
            late = await b.post()
    assert (bad.status_code, late.status_code) == (400, 503)
    lines = [line for line in caplog.messages if line.startswith("Tidegate: Refused ")]
    assert lines[0].startswith("Tidegate: Refused from-support of ")
    assert lines[1].startswith(f"Tidegate: Refused {late.headers['x-request-id']} of ")


async def test_a_trial_in_shadow_says_what_it_would_have_held(caplog: pytest.LogCaptureFixture) -> None:
    """The one thing an adopter wants to read."""
    async with bed(level=Level(kv_usage=0.97), mode="shadow") as b:
        for _ in range(3):
            assert (await b.post()).status_code == 200
        b.runtime.hooks(AdmissionEvent(kind=EventKind.TICK, statistics=Statistics(is_open=False)))
    (line,) = [line for line in caplog.messages if "Shadow" in line]
    assert line.startswith("Tidegate: Shadow: would have held or refused 3 (")
    assert "standard queued 3" in line


def test_an_impossible_figure_is_said_once_however_it_moves(caplog: pytest.LogCaptureFixture) -> None:
    """A gauge in percent is wrong in another way with every reading; another fault is said at once."""
    hook = LogHook(FakeClock())
    for usage in (45.1, 45.25, 7.0, 100.0):
        with pytest.raises(InvalidReading) as caught:
            Reading(kv_usage=usage)
        hook(AdmissionEvent(kind=EventKind.PROBE_FAILED, instance="a", detail=str(caught.value)))
    hook(AdmissionEvent(kind=EventKind.PROBE_FAILED, instance="a", detail="no complete answer within 2 s."))
    assert ["percentage" in record.message for record in caplog.records] == [True, False]
