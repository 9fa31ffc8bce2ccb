"""The console's options.

Law of this file: an options object that exists is consistent; whoever may look is decided in
`access.py`, not here.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, SecretStr, field_validator

MIN_TOKEN_CHARACTERS = 16


class ConsoleOptions(BaseModel):
    """Where the operator's page stands and who may see it.

    Without `admin_token` only callers on this machine see it; for everybody else the path belongs to
    the app behind the gate, as if there were no console.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    path: str = "/tidegate"
    """Prefix of the page, below the app's own root path."""
    admin_token: SecretStr | None = None
    """Opens the page, the mode switch and the reload from anywhere: as Bearer token, or as password when a
    browser asks. Without one nothing can be changed by HTTP."""
    allow_loopback: bool = True
    """Callers on this machine read the page without the token, unless a proxy is seen to stand between."""

    @field_validator("path")
    @classmethod
    def _path(cls, value: str) -> str:
        parts = value.split("/")
        if parts[0] or len(parts) < 2 or any(part in ("", ".", "..") for part in parts[1:]):
            raise ValueError("set a path such as '/tidegate': a leading slash, no slash at the end, no dots.")
        return value

    @field_validator("admin_token")
    @classmethod
    def _admin_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < MIN_TOKEN_CHARACTERS:
            raise ValueError(
                f"use at least {MIN_TOKEN_CHARACTERS} characters, "
                "e.g. from: python -c 'import secrets; print(secrets.token_urlsafe(24))'"
            )
        return value
