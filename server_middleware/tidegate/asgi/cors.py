"""Makes refusals readable in a browser when we stand outside the app's CORS middleware.

Law of this file: an origin is allowed only if it is configured; what a page may read of us is a fixed
list; and what the app itself exposes is added to, never replaced. Preflights are never guarded, so
they always reach the app.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from tidegate.asgi.types import HeaderList, Headers, first_header, list_header
from tidegate.option_types import Texts

EXPOSED = (
    "Retry-After",
    "Retry-After-Ms",
    "RateLimit",
    "RateLimit-Policy",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-Should-Retry",
    "X-Request-Id",
    "Tidegate-Reason",
    "Server-Timing",
)
_PLAIN = re.compile(r"[\x21-\x7e]{1,512}")  # an origin is echoed, so it must not hold a line break
_EXPOSED_VALUE = ", ".join(EXPOSED).encode("ascii")


class CorsOptions(BaseModel):
    """Which pages may read our refusals; the same as the app's own CORS middleware has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allow_origins: Texts = ()
    """Exact origins such as `https://chat.example`, or `*`."""
    allow_origin_regex: str | None = None
    allow_credentials: bool = False

    @field_validator("allow_origin_regex")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression ({error}): correct it.") from error
        return pattern

    @field_validator("allow_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ValueError(
                    f"{origin!r} is no origin: write scheme://host[:port], with no path, or '*'."
                )
        return origins

    @model_validator(mode="after")
    def _no_credentials_for_all(self) -> CorsOptions:
        if self.allow_credentials and "*" in self.allow_origins:
            raise ValueError("allow_credentials with '*' lets any page in: list the origins, or drop one.")
        return self


class Cors:
    """Answers for one set of options."""

    def __init__(self, options: CorsOptions) -> None:
        self._any = "*" in options.allow_origins
        self._origins = frozenset(options.allow_origins)
        self._pattern = re.compile(options.allow_origin_regex) if options.allow_origin_regex else None
        self._credentials = options.allow_credentials
        self._enabled = bool(self._origins or self._pattern)

    def refusal_headers(self, request: Headers) -> HeaderList:
        """The lines that let the page at `Origin` read a refusal; only `Vary` when it may not."""
        if not self._enabled:
            return []
        origin = first_header(request, b"origin")
        if self._any:
            return [] if origin is None else self._allowing("*")
        vary = [(b"vary", b"Origin")]
        if origin is None or not _PLAIN.fullmatch(origin) or not self._allows(origin):
            return vary
        return self._allowing(origin) + vary

    def _allows(self, origin: str) -> bool:
        if origin in self._origins:
            return True
        return self._pattern is not None and self._pattern.fullmatch(origin) is not None

    def _allowing(self, origin: str) -> HeaderList:
        lines = [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED_VALUE),
        ]
        if self._credentials:
            lines.append((b"access-control-allow-credentials", b"true"))
        return lines


def expose(response: Headers) -> HeaderList:
    """The app's response headers with ours added to `Access-Control-Expose-Headers`.

    Nothing is added where the app did not open the response to a page at all. A `*` is added to as
    well: with credentials it is only a name.
    """
    lines = list(response)
    if first_header(lines, b"access-control-allow-origin") is None:
        return lines
    theirs = {
        name.strip().lower() for name in list_header(lines, b"access-control-expose-headers").split(",")
    }
    missing = [name for name in EXPOSED if name.lower() not in theirs]
    if missing:
        lines.append((b"access-control-expose-headers", ", ".join(missing).encode("ascii")))
    return lines
