"""The server of the demo: the engine simulator, bare or with the gate in front.

Run as `python -m tidegate.demo.server PORT bare|gated`. The simulator's metrics are in the process's
own Prometheus registry, as vLLM's are, so the gate finds them by itself.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from prometheus_client import REGISTRY

from tidegate import AdmissionMiddleware, Settings
from tidegate.testing import EngineOptions, create_engine_app

VIP_KEY = "demo-vip"
BULK_KEY = "demo-bulk"

# A small cache, so that a flood that fits on one screen fills it: 8,192 tokens, some 16 long requests.
ENGINE = EngineOptions(
    num_blocks=512,
    block_tokens=16,
    max_sequences=64,
    max_model_tokens=2048,
    step_s=0.010,
    prefill_s_per_token=0.00004,
    decode_s_per_sequence=0.00004,
)

TENANTS = [
    {"name": "vip", "keys": [VIP_KEY], "priority_class": "vip"},
    {"name": "bulk", "keys": [BULK_KEY], "priority_class": "standard"},
]
# A short queue, so that the flood shows refusals too; the defaults hold 512 for 30 s.
CLASSES = [
    {"name": "vip", "weight": 8.0},
    {"name": "standard", "kv_ceiling": 0.97, "max_queued": 40, "max_wait_s": 8.0},
]


def build(gated: bool) -> Any:
    """The ASGI app."""
    app = create_engine_app(ENGINE, registry=REGISTRY)
    if not gated:
        return app
    settings = Settings.load(tenants=TENANTS, classes=CLASSES)
    return AdmissionMiddleware(app, settings=settings)


def main(arguments: list[str]) -> None:
    """Serve until told to stop."""
    port, kind = int(arguments[0]), arguments[1]
    uvicorn.run(
        build(kind == "gated"), host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=2
    )


if __name__ == "__main__":
    main(sys.argv[1:])
