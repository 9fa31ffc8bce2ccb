"""Concurrency gives way where tokens come too slowly."""

from __future__ import annotations

import pytest

from tidegate.core.pace import PaceGuard


def test_pace_guard_shrinks_above_its_target_and_grows_back() -> None:
    """Slower tokens than wanted: fewer at once; without a target nothing changes."""
    guard = PaceGuard(0.05)
    assert guard.bound(100) == 100
    assert guard.bound(None) is None
    for second in range(3):
        guard.take(0.08, 40, 100.0 + second)
        guard.take(0.08, 40, 100.0 + second + 0.5)
    assert guard.share == pytest.approx(0.9**3)
    assert guard.bound(100) == 72
    assert guard.bound(None) == 29
    for second in range(200):
        guard.take(0.08, 40, 200.0 + second)
    assert guard.bound(5) == 1
    for second in range(100):
        guard.take(0.02, 40, 1000.0 + second)
    assert guard.share == 1.0
    idle = PaceGuard(None)
    idle.take(9.0, 5, 1.0)
    assert idle.bound(None) is None
