"""Tidegate: admission control by the real KV level, for ASGI servers of large language models.

    from tidegate import AdmissionMiddleware
    app.add_middleware(AdmissionMiddleware)

Names are loaded when first used, so that the package can say which extra is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.asgi.middleware import AdmissionMiddleware
    from tidegate.asgi.tenant import TenantKeys
    from tidegate.core.reading import InvalidReading, Reading
    from tidegate.settings import Settings
    from tidegate.settings_errors import InvalidSettings
    from tidegate.telemetry.events import AdmissionEvent, EventKind

__all__ = [
    "AdmissionEvent",
    "AdmissionMiddleware",
    "EventKind",
    "InvalidReading",
    "InvalidSettings",
    "Reading",
    "Settings",
    "TenantKeys",
]

_HOMES = {
    "AdmissionEvent": "tidegate.telemetry.events",
    "AdmissionMiddleware": "tidegate.asgi.middleware",
    "EventKind": "tidegate.telemetry.events",
    "InvalidReading": "tidegate.core.reading",
    "InvalidSettings": "tidegate.settings_errors",
    "Reading": "tidegate.core.reading",
    "Settings": "tidegate.settings",
    "TenantKeys": "tidegate.asgi.tenant",
}

_SERVER_PACKAGES = ("pydantic", "pydantic_settings", "msgspec", "prometheus_client")


def __getattr__(name: str) -> Any:
    """Load a public name.

    Raises:
        ImportError: a package of the `server` extra is missing; the message says how to install it.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in _SERVER_PACKAGES:
            raise ImportError(
                f"tidegate.{name} needs the package {error.name!r}: install the server half with "
                "pip install 'tidegate[server]'",
                name=error.name,
            ) from error
        raise


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__", "__name__"])
