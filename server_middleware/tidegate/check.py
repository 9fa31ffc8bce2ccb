"""`tidegate check`: read the configuration and the engine once, and say what was found.

Law of this file: it changes nothing; exit code 0 means that the gate would work as configured, 1 that
it would start but be blind.
"""

from __future__ import annotations

import logging

from rich.console import Console
from rich.table import Table

from tidegate.core.reading import Reading
from tidegate.probes.auto import find_probe
from tidegate.probes.protocol import as_readings, close
from tidegate.settings import Settings


async def check(console: Console | None = None) -> int:
    """Print the findings; returns the exit code.

    Raises:
        InvalidSettings: the configuration is wrong.
    """
    out = console or Console()
    logging.getLogger("tidegate").addHandler(logging.NullHandler())
    settings = Settings.load()
    out.print(_settings(settings))
    probe, why = find_probe(settings.probe)
    out.print(f"\nProbe: {why}")
    try:
        readings = as_readings(await probe.read())
    except Exception as error:  # noqa: BLE001 - whatever a source raises is the finding
        out.print(f"[bold red]No level:[/bold red] {error}")
        out.print(
            f"The gate would start blind and follow probe.on_blind = '{settings.probe.on_blind}'. "
            "In a server process that publishes its metrics the probe may still find them."
        )
        return 1
    finally:
        await close(probe)
    out.print(_readings(readings))
    return 0


def _settings(settings: Settings) -> Table:
    table = Table(title=f"Configuration: mode {settings.mode}", title_justify="left")
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
