"""Refusals that the shell makes by itself, for which no slot of the calendar is booked.

Law of this file: every wait is drawn, so that those who are turned away together do not come back as one.
"""

from __future__ import annotations

from tidegate.core.decisions import Reason, Refuse, Uniform

LEAST_S, MOST_S = 5.0, 15.0
KEYS_LEAST_S, KEYS_MOST_S = 1.0, 2.0


def draining(uniform: Uniform, ticket: int = 0) -> Refuse:
    """The server is stopping: what those are told who come or wait now."""
    return Refuse(ticket, Reason.DRAINING, "model", _drawn(uniform, LEAST_S, MOST_S))


def no_room(uniform: Uniform) -> Refuse:
    """The bodies under way and in the queue leave no room for this one."""
    return Refuse(0, Reason.QUEUE_FULL, "model", _drawn(uniform, LEAST_S, MOST_S))


def gate_fault(uniform: Uniform) -> Refuse:
    """The gate has failed and may not open."""
    return Refuse(0, Reason.GATE_FAULT, "model", _drawn(uniform, LEAST_S, MOST_S))


def keys_unavailable(uniform: Uniform) -> Refuse:
    """The caller's key cannot be checked now."""
    return Refuse(0, Reason.KEYS_UNAVAILABLE, "request", _drawn(uniform, KEYS_LEAST_S, KEYS_MOST_S))


def _drawn(uniform: Uniform, least_s: float, most_s: float) -> float:
    return least_s + (most_s - least_s) * uniform()
