"""The settings group `probe`.

Law of this file: options are frozen and right once they exist. An error names the field, the value and
the way out; secrets are never shown.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from tidegate.option_types import Texts
from tidegate.probes.poller import Pace
from tidegate.probes.presets import FIGURES, PRESETS
from tidegate.probes.protocol import shown
from tidegate.probes.selectors import Selector

Source = Literal["auto", "prometheus", "registry", "sglang", "shared_memory"]
OnBlind = Literal["local", "open", "closed"]
_MIB = 1024 * 1024


class ProbeOptions(BaseModel):
    """Where the KV level is read, how often, and what to do without it. Times in seconds.

    Raises:
        pydantic.ValidationError: a value cannot be right, or two do not go together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    source: Source = "auto"
    """`auto` looks around: see `probes.auto`."""
    urls: Texts = ()
    """Metrics pages (`prometheus`), or the server's root (`sglang`); comma-separated in the environment."""
    path: str | None = None
    """The file of the source `shared_memory`, or SGLang's snapshot (None: the only one there is)."""
    engine: str = "auto"
    """A preset's name; `auto` recognises the engine by its metrics."""
    names: dict[str, str] = Field(default_factory=dict)
    """Figures placed elsewhere: figure -> `metric_name`, `name{label="value"}` or `name@label`."""
    per_engine: bool = True
    """Data-parallel engines behind one address have a reading and a ledger each, instead of one fused."""
    read_models: bool = True
    """Ask `/v1/models` of the same host for the context limit, at the start and after a restart."""

    interval_s: float = Field(default=1.0, gt=0, le=60, allow_inf_nan=False)
    min_interval_s: float = Field(default=0.25, gt=0, allow_inf_nan=False)
    """The interval near the watermark, and the least distance between two readings asked for."""
    idle_interval_s: float = Field(
        default_factory=lambda data: 2 * data.get("interval_s", 1.0), gt=0, le=3600
    )
    """The interval while the engine is empty; twice `interval_s` when not set."""
    max_backoff_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """The longest interval after failures."""
    timeout_s: float = Field(default=2.0, gt=0, le=30, allow_inf_nan=False)
    stale_after_s: float = Field(default_factory=lambda data: 3 * data.get("interval_s", 1.0), gt=0, le=3600)
    """A reading older than this is stale; three times `interval_s` when not set."""
    on_blind: OnBlind = "local"
    """Without a level: `local` limits only, `open`, or `closed`."""

    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Sent with each request to a metrics page."""
    bearer_token: SecretStr | None = None
    verify_tls: bool = True
    ca_file: Path | None = None
    """Certificates to trust instead of the usual ones."""
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    max_bytes: int = Field(default=4 * _MIB, ge=1024, le=64 * _MIB)
    """A larger page is refused, as sent or as unpacked."""

    @field_validator("urls")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        seen: set[str] = set()
        for url in urls:
            _check_url(url)
            if _page(url) in seen:
                raise ValueError(f"{shown(url)!r} is listed twice, expected each instance once.")
            seen.add(_page(url))
        return urls

    @field_validator("engine")
    @classmethod
    def _check_engine(cls, engine: str) -> str:
        if engine != "auto" and engine not in PRESETS:
            raise ValueError(f"{engine!r} is no preset, expected auto or one of {', '.join(PRESETS)}.")
        return engine

    @field_validator("names")
    @classmethod
    def _check_names(cls, names: dict[str, str]) -> dict[str, str]:
        for figure, text in names.items():
            if figure not in FIGURES:
                raise ValueError(f"{figure!r} is no figure, expected one of {', '.join(FIGURES)}.")
            Selector.parse(text)
        return names

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not name or not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
                raise ValueError(f"{name!r} is no header name, expected letters, digits and hyphens.")
            _check_secret(f"the value of {name}", value)
        return headers

    @field_validator("bearer_token")
    @classmethod
    def _check_token(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None:
            _check_secret("bearer_token", token)
        return token

    @model_validator(mode="after")
    def _check_together(self) -> ProbeOptions:
        for message in _contradictions(self):
            raise ValueError(message)
        return self

    @property
    def pace(self) -> Pace:
        """How often to ask. The poller's own time-out is a backstop behind the source's."""
        return Pace(
            interval_s=self.interval_s,
            min_interval_s=min(self.min_interval_s, self.interval_s),
            idle_interval_s=self.idle_interval_s,
            max_backoff_s=self.max_backoff_s,
            timeout_s=2 * self.timeout_s + 1.0,
        )

    @property
    def request_headers(self) -> dict[str, str]:
        """The headers in clear, for the request alone."""
        headers = {name: value.get_secret_value() for name, value in self.headers.items()}
        if self.bearer_token is not None:
            headers["Authorization"] = f"Bearer {self.bearer_token.get_secret_value()}"
        return headers

    def tls_context(self) -> ssl.SSLContext | bool:
        """Return what to verify servers with; False only for `verify_tls = false`.

        Raises:
            ValueError: a certificate file cannot be used.
        """
        if self.ca_file is None and self.client_cert_file is None:
            return self.verify_tls
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.client_cert_file is not None:
                context.load_cert_chain(self.client_cert_file, self.client_key_file)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(
                f"probe.ca_file or probe.client_cert_file cannot be used ({error}); expected PEM files."
            ) from error
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _contradictions(options: ProbeOptions) -> list[str]:
    found = []
    if options.source == "prometheus" and not options.urls:
        found.append("urls is empty, expected e.g. http://127.0.0.1:8000/metrics with source = prometheus.")
    if options.source == "shared_memory" and options.path is None:
        found.append("path is unset, expected the file of the writer with source = shared_memory.")
    if options.source == "registry" and options.urls:
        found.append("urls is set, but source = registry reads this process; drop one of the two.")
    if options.idle_interval_s >= options.stale_after_s:
        found.append(
            f"idle_interval_s is {options.idle_interval_s:g}, expected less than stale_after_s "
            f"({options.stale_after_s:g}): an idle engine would be taken for a silent one."
        )
    if options.interval_s >= options.stale_after_s:
        found.append(
            f"stale_after_s is {options.stale_after_s:g}, expected more than interval_s "
            f"({options.interval_s:g}): every reading would be stale before the next one."
        )
    if options.client_key_file is not None and options.client_cert_file is None:
        found.append("client_key_file is set without client_cert_file, expected both or neither.")
    if not options.verify_tls and options.ca_file is not None:
        found.append("ca_file is set with verify_tls = false, expected one of the two.")
    return found


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    try:
        port_is_right = parts.port is None or 0 < parts.port < 65536
    except ValueError:
        port_is_right = False
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_right:
        raise ValueError(f"{shown(url)!r} is no page, expected a URL such as http://127.0.0.1:8000/metrics.")
    if parts.username or parts.password:
        raise ValueError(
            "a URL carries a user name or password, expected probe.headers or bearer_token instead."
        )


def _page(url: str) -> str:
    """What tells a page from another: an address without a path means `/metrics`."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/metrics'}?{parts.query}"


def _check_secret(name: str, value: SecretStr) -> None:
    text = value.get_secret_value()
    if not text.strip() or not text.isascii() or not text.isprintable():
        raise ValueError(f"{name} is empty or not printable ASCII; take out line breaks and quotes.")
