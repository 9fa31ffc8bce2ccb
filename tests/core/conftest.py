"""Hypothesis profiles of the core's tests."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile("no-shrink", phases=[Phase.explicit, Phase.generate])
