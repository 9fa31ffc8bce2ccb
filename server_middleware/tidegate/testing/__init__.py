"""Parts for testing and trying out: a clock that stands still, a probe that reads a script, an engine
without a GPU.

`EngineSimulator` is the paged-KV scheduler alone (synchronous, no clock); `create_engine_app` puts an
OpenAI-compatible server with vLLM's metrics around it. Needs `tidegate[server]`.
"""

from __future__ import annotations

from tidegate.testing.clock import FakeClock
from tidegate.testing.engine import EngineSimulator
from tidegate.testing.engine_app import EngineApp, create_engine_app
from tidegate.testing.engine_values import EngineOptions, EngineStats, StepReport
from tidegate.testing.probe import ScriptedProbe

__all__ = [
    "EngineApp",
    "EngineOptions",
    "EngineSimulator",
    "EngineStats",
    "FakeClock",
    "ScriptedProbe",
    "StepReport",
    "create_engine_app",
]
