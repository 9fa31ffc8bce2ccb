"""All options in one frozen object, from keyword arguments, environment, TOML file and defaults.

Law of this file: it names and joins the groups; each group's checks live beside the code that obeys
them. Keyword wins over environment wins over file wins over default. A wrong or unknown option is an
`InvalidSettings` that names the field, the value and the way out, at start and not at the first burst.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tidegate.asgi.body import BodyOptions
from tidegate.asgi.cors import CorsOptions
from tidegate.asgi.fields import FieldPolicy
from tidegate.asgi.identity import IdentityOptions, TenantKeys
from tidegate.asgi.replies import ReplyOptions
from tidegate.console.options import ConsoleOptions
from tidegate.core.options import (
    DEFAULT_CLASSES,
    BackoffOptions,
    CalendarOptions,
    ClassOptions,
    GateOptions,
    KvOptions,
    QueueOptions,
    SignalOptions,
    TenantLimits,
)
from tidegate.probes.options import ProbeOptions

Mode = Literal["enforce", "shadow", "off"]
PREFIX = "TIDEGATE_"
FILE_VARIABLE = "TIDEGATE_CONFIG"
BLIND_AFTER_S = 10.0  # a reading this old says nothing any more, or three times what makes it stale

T = TypeVar("T")


class InvalidSettings(ValueError):
    """The configuration cannot work; each line names a field, its value and the way out."""


def _known_fields(group: type) -> BeforeValidator:
    """A misspelt option of a group is an error with a suggestion, not a silent default."""
    names = [field.name for field in dataclasses.fields(group)]

    def check(value: object) -> object:
        if isinstance(value, Mapping):
            for name in value:
                if name not in names:
                    raise ValueError(f"unknown option {name!r}.{_suggest(str(name), names)}")
        return value

    return BeforeValidator(check)


def _suggest(name: str, names: Iterable[str]) -> str:
    known = sorted(names)
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}."


class TenantSettings(BaseModel):
    """One tenant: who it is (keys) and what it may do (the fields of `TenantLimits`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    keys: tuple[SecretStr, ...] = ()
    priority_class: str = "standard"
    weight: float = 1.0
    requests_per_s: float | None = None
    request_burst: float | None = None
    tokens_per_s: float | None = None
    token_burst: float | None = None
    max_concurrency: int | None = None
    max_queued: int | None = None

    def limits(self) -> TenantLimits:
        """The part that the core needs."""
        return TenantLimits(**self.model_dump(exclude={"name", "keys"}))


class GuardOptions(BaseModel):
    """Which requests are guarded besides the known inference routes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    guard_unknown_posts: bool = False
    """Guard every POST that is not known to be harmless."""
    extra_guarded: tuple[str, ...] = ()
    """Further guarded paths, e.g. `/predict`."""
    exempt: tuple[str, ...] = ()
    """Paths never guarded; these win over everything else."""


class Settings(BaseSettings):
    """Tidegate's configuration. Environment: `TIDEGATE_KV__HIGH_WATERMARK=0.82`; file: `TIDEGATE_CONFIG`.

    Raises:
        InvalidSettings: from `Settings.load`; constructing directly raises pydantic's own error.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid", hide_input_in_errors=False
    )

    mode: Mode = "enforce"
    on_internal_error: Literal["open", "closed"] = "open"
    internal_error_concurrency: int = Field(default=64, ge=1)
    metrics: bool = True
    kv: Annotated[KvOptions, _known_fields(KvOptions)] = KvOptions()
    queue: Annotated[QueueOptions, _known_fields(QueueOptions)] = QueueOptions()
    classes: tuple[Annotated[ClassOptions, _known_fields(ClassOptions)], ...] = DEFAULT_CLASSES
    default_class: str = "standard"
    tenants: tuple[TenantSettings, ...] = ()
    default_tenant: Annotated[TenantLimits, _known_fields(TenantLimits)] = TenantLimits()
    max_tenants: int = Field(default=10_000, ge=1)
    backoff: Annotated[BackoffOptions, _known_fields(BackoffOptions)] = BackoffOptions()
    probe: ProbeOptions = ProbeOptions()
    guard: GuardOptions = GuardOptions()
    identity: IdentityOptions = IdentityOptions()
    fields: FieldPolicy = FieldPolicy()
    body: BodyOptions = BodyOptions()
    reply: ReplyOptions = ReplyOptions()
    cors: CorsOptions = CorsOptions()
    console: ConsoleOptions = ConsoleOptions()

    @field_validator("tenants")
    @classmethod
    def _names_differ(cls, tenants: tuple[TenantSettings, ...]) -> tuple[TenantSettings, ...]:
        names = [tenant.name for tenant in tenants]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"tenant names must differ, given twice: {', '.join(twice)}.")
        return tenants

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keyword, then environment, then the TOML file named by TIDEGATE_CONFIG."""
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        path = os.environ.get(FILE_VARIABLE)
        if path:
            sources.append(TomlConfigSettingsSource(settings_cls, toml_file=_existing(path)))
        return tuple(sources)

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """Read and check everything.

        Raises:
            InvalidSettings: naming each wrong field, its value and the way out.
        """
        _refuse_unknown_variables(cls)
        try:
            settings = cls(**overrides)
            settings.gate_options()
        except ValidationError as error:
            raise InvalidSettings(_told(error)) from error
        except ValueError as error:
            raise InvalidSettings(str(error)) from error
        return settings

    def gate_options(self) -> GateOptions:
        """The part that the pure core needs."""
        return GateOptions(
            kv=self.kv,
            queue=self.queue,
            classes=self.classes,
            default_class=self.default_class,
            tenants={tenant.name: tenant.limits() for tenant in self.tenants},
            default_tenant=self.default_tenant,
            backoff=self.backoff,
            calendar=CalendarOptions(max_retry_after_s=self.reply.max_retry_after_s),
            signal=SignalOptions(
                stale_after_s=self.probe.stale_after_s,
                blind_after_s=max(BLIND_AFTER_S, 3 * self.probe.stale_after_s),
                on_blind=self.probe.on_blind,
            ),
            max_tenants=self.max_tenants,
        )

    def tenant_keys(self) -> tuple[TenantKeys, ...]:
        """The part that the identity resolver needs."""
        return tuple(
            TenantKeys(
                name=tenant.name,
                priority_class=tenant.priority_class,
                keys=tuple(key.get_secret_value() for key in tenant.keys),
            )
            for tenant in self.tenants
        )


def _existing(path: str) -> Path:
    file = Path(path)
    if not file.is_file():
        raise InvalidSettings(
            f"{FILE_VARIABLE} is {path!r}: there is no such file. Name a TOML file or unset it."
        )
    return file


def _refuse_unknown_variables(settings: type[Settings]) -> None:
    known = [f"{PREFIX}{name.upper()}" for name in settings.model_fields]
    for variable in os.environ:
        upper = variable.upper()
        if not upper.startswith(PREFIX) or upper == FILE_VARIABLE or upper.startswith("TIDEGATE_ENGINE_"):
            continue
        top = upper.split("__", 1)[0]
        if top not in known:
            raise InvalidSettings(f"{variable} is set, but there is no such option.{_suggest(top, known)}")


def _told(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        field = ".".join(str(part) for part in problem["loc"] if not str(part).startswith("function-"))
        message = problem["msg"].removeprefix("Value error, ")
        value = "" if "is " in message[:60] and field in message else f" is {_shown(problem.get('input'))}"
        lines.append(f"{field or 'settings'}{value}: {message}" if value else message)
    return "; ".join(lines)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
