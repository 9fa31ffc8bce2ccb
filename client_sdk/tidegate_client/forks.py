"""What a forked child must begin anew: locks, which another thread of the parent may have held.

Law: the child of a fork has one thread, so it needs no care; the parent notices nothing.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewed(Protocol):
    """Something that other threads may be in the middle of when the process forks."""

    def begin_anew(self) -> None:
        """In the child, before anything else happens there."""


_known: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew_in_children(what: Renewed) -> None:
    """Have `what` begin anew in every child forked from now on, for as long as it lives."""
    _known.add(what)


def _in_child() -> None:
    for each in list(_known):
        each.begin_anew()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_in_child)
