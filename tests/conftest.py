"""What holds for every test.

Hypothesis: no deadlines, since a loaded machine is slow and not wrong; in CI the examples are the same
each time, so that a red run is a change's doing. The machine's own TIDEGATE_* variables are out of sight.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TIDEGATE_") and not name.startswith("TIDEGATE_ENGINE_"):
            monkeypatch.delenv(name)
