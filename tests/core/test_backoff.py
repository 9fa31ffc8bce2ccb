"""Full jitter between looks at a level that is above the watermark."""

from __future__ import annotations

import pytest

from tidegate.core.backoff import LEAST_WAIT_S, Backoff
from tidegate.core.options import BackoffOptions


def test_backoff_bounds_grow_to_the_cap_and_reset() -> None:
    """0.05 s x 1.5^n up to 0.5 s."""
    backoff = Backoff(BackoffOptions())
    bounds = [backoff.next_wait_s(lambda: 1.0) for _ in range(9)]
    assert bounds == pytest.approx([min(0.5, 0.05 * 1.5**step) for step in range(9)])
    backoff.reset()
    assert backoff.next_wait_s(lambda: 1.0) == pytest.approx(0.05)


def test_backoff_is_full_jitter_and_never_zero() -> None:
    """The whole interval is drawn from; a drawn zero does not make the shell spin."""
    backoff = Backoff(BackoffOptions())
    assert backoff.next_wait_s(lambda: 0.0) == LEAST_WAIT_S
    assert backoff.next_wait_s(lambda: 0.5) == pytest.approx(0.5 * 0.05 * 1.5)
