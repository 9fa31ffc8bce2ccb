"""All options in one frozen object, from keyword arguments, environment, TOML file and defaults.

Law of this file: it names and joins the groups; each group's checks live beside the code that obeys
them. Keyword wins over environment wins over file wins over default. A wrong or unknown option is an
`InvalidSettings` that names the field, the value and the way out, at start and not at the first burst.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
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
    SettingsError,
    TomlConfigSettingsSource,
)

from tidegate.asgi.body import BodyOptions
from tidegate.asgi.classify import GuardOptions
from tidegate.asgi.cors import CorsOptions
from tidegate.asgi.fields import FieldPolicy
from tidegate.asgi.identity import IdentityOptions, Resolver, TenantKeys
from tidegate.asgi.keepalive import KeepAliveOptions
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
from tidegate.processes import part_of
from tidegate.settings_errors import (
    FILE_VARIABLE,
    PREFIX,
    InvalidSettings,
    explained,
    known_fields,
    readable_file,
    refuse_unknown_variables,
    told,
)

Mode = Literal["enforce", "shadow", "off"]
BLIND_AFTER_S = 10.0  # a reading this old says nothing any more, or three times what makes it stale


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
    fields: FieldPolicy | None = None

    def limits(self) -> TenantLimits:
        """The part that the core needs."""
        try:
            return TenantLimits(**self.model_dump(exclude={"name", "keys", "fields"}))
        except ValueError as error:
            raise ValueError(str(error).replace("tenants[].", f"tenants[{self.name}].")) from error


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
    processes: int = Field(default=1, ge=1)
    kv: Annotated[KvOptions, known_fields(KvOptions)] = KvOptions()
    queue: Annotated[QueueOptions, known_fields(QueueOptions)] = QueueOptions()
    classes: tuple[Annotated[ClassOptions, known_fields(ClassOptions)], ...] = DEFAULT_CLASSES
    tenants: tuple[TenantSettings, ...] = ()
    default_tenant: Annotated[TenantLimits, known_fields(TenantLimits)] = TenantLimits()
    max_tenants: int = Field(default=10_000, ge=1)
    backoff: Annotated[BackoffOptions, known_fields(BackoffOptions)] = BackoffOptions()
    probe: ProbeOptions = ProbeOptions()
    guard: GuardOptions = GuardOptions()
    identity: IdentityOptions = IdentityOptions()
    fields: FieldPolicy = FieldPolicy()
    body: BodyOptions = BodyOptions()
    reply: ReplyOptions = ReplyOptions()
    keepalive: KeepAliveOptions = KeepAliveOptions()
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
            sources.append(TomlConfigSettingsSource(settings_cls, toml_file=readable_file(path)))
        return tuple(sources)

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """Read and check everything.

        Raises:
            InvalidSettings: naming each wrong field, its value and the way out.
        """
        refuse_unknown_variables(cls)
        try:
            settings = cls(**overrides)
            settings.check()
        except ValidationError as error:
            raise InvalidSettings(told(cls, error)) from error
        except SettingsError as error:
            raise InvalidSettings(explained(error)) from error
        except ValueError as error:
            told_of = str(error).replace("tenants[default_tenant].", "default_tenant.")
            raise InvalidSettings(told_of) from error
        return settings

    def check(self) -> None:
        """What only shows when the groups are seen together.

        Raises:
            ValueError: a class that does not exist, a key that two tenants share.
        """
        options = self.gate_options()
        names = [row.name for row in options.classes]
        flex = self.identity.flex_class
        if "flex_class" in self.identity.model_fields_set and flex is not None and flex not in names:
            raise ValueError(f"identity.flex_class is {flex!r}: choose one of {', '.join(names)}.")
        Resolver(
            self.tenant_keys(),
            self.identity,
            classes=names,
            default_class=self.default_tenant.priority_class,
        )

    def gate_options(self) -> GateOptions:
        """The part that the pure core needs: of several processes each has its part of the bounds."""
        options = GateOptions(
            kv=self.kv,
            queue=self.queue,
            classes=self.classes,
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
        return part_of(options, self.processes)

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
