"""`tidegate check`: read the configuration and the engine once, and say what was found.

Law of this file: it changes nothing; exit code 0 means that the gate would work as configured, 1 that
it would start but be blind.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidegate.asgi.identity import UNPROVEN
from tidegate.core.reading import Reading
from tidegate.probes.auto import find_probe
from tidegate.probes.protocol import as_readings, close
from tidegate.settings import Settings
from tidegate.settings_errors import InvalidSettings

_BLIND = {
    "local": "it would go by what it sees itself, more carefully (probe.on_blind = 'local').",
    "open": "it would let everything pass (probe.on_blind = 'open').",
    "closed": "it would refuse every guarded request (probe.on_blind = 'closed').",
}
_IN_PROCESS = (
    "Inside a server process that publishes its metrics, such as vLLM's with --middleware, the probe may "
    "still find them. To ask one that runs: TIDEGATE_PROBE__URLS=http://127.0.0.1:8000 tidegate check"
)


async def check(console: Console | None = None) -> int:
    """Print the findings; returns the exit code.

    Raises:
        InvalidSettings: the configuration is wrong, or names a file that cannot be used.
    """
    out = console or Console()
    logging.getLogger("tidegate").addHandler(logging.NullHandler())
    settings = Settings.load()
    out.print(_settings(settings))
    for oddity in oddities(settings):
        out.print(f"[yellow]Look again:[/yellow] {escape(oddity)}")
    return await _level(out, settings)


async def _level(out: Console, settings: Settings) -> int:
    try:
        probe, why = find_probe(settings.probe)
    except ValueError as error:
        raise InvalidSettings(str(error)) from error
    out.print(f"\nProbe: {escape(why)}")
    try:
        readings = as_readings(await probe.read())
    except Exception as error:  # noqa: BLE001 - whatever a source raises is the finding
        out.print(f"[bold red]No level:[/bold red] {escape(str(error) or repr(error))}")
        out.print(f"The gate would start blind: {_BLIND[settings.probe.on_blind]}")
        is_told_where = settings.probe.urls or settings.probe.path
        if settings.probe.source == "registry" or (settings.probe.source == "auto" and not is_told_where):
            out.print(_IN_PROCESS)
        return 1
    finally:
        await close(probe)
    out.print(_readings(readings))
    for gap in _gaps(readings, settings):
        out.print(f"[yellow]Look again:[/yellow] {escape(gap)}")
    return 0


def oddities(settings: Settings) -> Iterator[str]:
    """What is allowed and yet hardly meant, each with the way out."""
    identity = settings.identity
    has_keys = any(tenant.keys for tenant in settings.tenants)
    if identity.tenant_header and not identity.trusted_proxies:
        yield (
            f"identity.tenant_header is {identity.tenant_header!r}, but nobody's word counts: "
            "set identity.trusted_proxies to the proxies that write it."
        )
    if identity.end_user_header and not identity.trusted_proxies and not has_keys:
        yield (
            f"identity.end_user_header is {identity.end_user_header!r}, but nobody's word counts: "
            "set identity.trusted_proxies, or give tenants keys."
        )
    keyless = [tenant.name for tenant in settings.tenants if not tenant.keys and tenant.name != UNPROVEN]
    if keyless and not identity.tenant_header:
        yield (
            f"tenants {', '.join(keyless)}: without keys and without identity.tenant_header, only a key "
            "provider in the program can name them."
        )
    if identity.require_key and not has_keys:
        yield (
            "identity.require_key is on and no tenant has keys: everybody gets a 401, "
            "unless a key provider in the program knows them."
        )
    if settings.mode != "enforce":
        yield f"mode is {settings.mode!r}: nothing is held back or refused."


def _gaps(readings: list[Reading], settings: Settings) -> Iterator[str]:
    for reading in readings:
        if reading.asleep:
            yield f"{reading.instance} sleeps: requests get a 503 until it wakes."
        if reading.kv_usage is None:
            yield f"{reading.instance} tells no KV level: only what the gate itself sees bounds the load."
        elif not (reading.capacity_tokens or settings.kv.capacity_tokens):
            yield (
                f"{reading.instance} does not say how large its KV cache is: it is learnt under load; "
                "or set kv.capacity_tokens."
            )


def _settings(settings: Settings) -> Table:
    table = Table(title=_title(settings), title_justify="left")
    for name in ("class", "KV ceiling", "longest wait", "seats", "tenants"):
        table.add_column(name)
    for row in settings.classes:
        tenants = [tenant.name for tenant in settings.tenants if tenant.priority_class == row.name]
        if row.name == settings.default_tenant.priority_class:
            tenants.append("(everyone else)")
        table.add_row(
            row.name,
            f"{row.kv_ceiling:.0%}",
            f"{row.max_wait_s:g} s",
            str(row.max_queued),
            ", ".join(tenants),
        )
    return table


def _title(settings: Settings) -> str:
    one_of = f", one of {settings.processes} processes" if settings.processes > 1 else ""
    return f"Configuration: mode {settings.mode}{one_of}"


def _readings(readings: list[Reading]) -> Table:
    table = Table(title="What the engine says", title_justify="left")
    for name in ("instance", "KV level", "running", "waiting", "capacity", "block", "context", "preemptions"):
        table.add_column(name, justify="right")
    for reading in readings:
        level = "unknown" if reading.kv_usage is None else f"{reading.kv_usage:.1%}"
        table.add_row(
            reading.instance,
            level,
            *(
                "unknown" if figure is None else f"{figure:,.0f}"
                for figure in (
                    reading.running,
                    reading.waiting,
                    reading.capacity_tokens,
                    reading.block_tokens,
                    reading.max_model_tokens,
                    reading.preemptions,
                )
            ),
        )
    return table
