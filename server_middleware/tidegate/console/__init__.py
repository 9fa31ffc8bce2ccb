"""The operator's page: what the gate sees, for those who may look.

Read `app.py` for the routes, `access.py` for who may look, `snapshot.py` for what is told.
"""

from __future__ import annotations

from tidegate.console.app import Console
from tidegate.console.options import ConsoleOptions

__all__ = ["Console", "ConsoleOptions"]
