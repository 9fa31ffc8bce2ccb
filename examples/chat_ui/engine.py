"""The engine of the demo: the simulator with the gate in front, small enough that a flood fills it."""

from __future__ import annotations

from tidegate import AdmissionMiddleware, Reading, Settings
from tidegate.testing import EngineOptions, create_engine_app

MODEL = "simulated"
CHAT_KEY = "demo-chat-key"
"""The chat is one tenant: the person at the page shares its seats with most of the flood."""
BOARD_KEY, REPORT_KEY = "demo-board-key", "demo-report-key"
CROWD_KEYS = (CHAT_KEY,) * 6 + (REPORT_KEY,) * 3 + (BOARD_KEY,)
"""Who the flood's callers are, by share."""

ENGINE = EngineOptions(num_blocks=512, block_tokens=16, max_model_tokens=4096, step_s=0.02)
"""Some 8,000 tokens of KV cache: about twenty long answers at a time."""

ANSWER_TOKENS = 48
"""Mean length of an answer to the person at the page; it is filler, like everything the simulator says."""


def gated_engine(options: EngineOptions = ENGINE) -> AdmissionMiddleware:
    """An engine simulator behind the gate, with short queues so that a flood shows refusals too."""
    engine = create_engine_app(options, model=MODEL, answer_tokens=ANSWER_TOKENS)
    settings = Settings.load(
        tenants=[
            {"name": "chat", "keys": [CHAT_KEY], "max_queued": 64},
            {"name": "board-room", "keys": [BOARD_KEY], "priority_class": "vip"},
            {"name": "nightly-report", "keys": [REPORT_KEY], "priority_class": "batch", "max_queued": 64},
        ],
        classes=[
            {"name": "vip", "weight": 8.0, "max_wait_s": 20.0},
            {"name": "standard", "weight": 3.0, "kv_ceiling": 0.97, "max_queued": 24, "max_wait_s": 8.0},
            {"name": "batch", "kv_ceiling": 0.9, "max_queued": 16, "max_wait_s": 30.0},
        ],
        keepalive={"after_s": 1.0, "interval_s": 1.0},  # a queued stream hears of its place
        metrics=False,
    )

    async def probe() -> Reading:
        return engine.engine.reading()

    return AdmissionMiddleware(engine, settings=settings, probe=probe)
