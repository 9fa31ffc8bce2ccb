"""From samples to readings: the rule for labels.

Law of this file: the answer does not depend on the order of lines. The rule:

1. `tp_rank`, `pp_rank`, `moe_ep_rank`, `pid` tell copies of one engine apart, all stating the same
   figure: the highest copy counts, copies are never added up. Duplicated lines are copies too.
2. `engine`, `dp_rank`, `worker_id`, `ReplicaId`, `WorkerId` tell engines apart, each with a KV cache of
   its own.
3. Whatever labels remain (`model_name`, `version`, ...) make separate series of one engine: their
   counts are added, of their levels the hottest counts, and a capacity they disagree on is unknown.

Fused into one reading, engines are combined as series are: levels by the hottest, counts and capacity by
the sum, the context limit by the least, and the whole sleeps only when every engine does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from tidegate.core.reading import Reading
from tidegate.probes.presets import Preset
from tidegate.probes.protocol import ProbeError
from tidegate.probes.selectors import Samples, Selector

COPY_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
RANK_LABELS = ("engine", "dp_rank", "worker_id", "ReplicaId", "WorkerId")

Rank: TypeAlias = "tuple[tuple[str, str], ...]"
Series: TypeAlias = "tuple[tuple[str, str], ...]"
ByRank: TypeAlias = "dict[Rank, dict[Series, float]]"


def _agreed(values: Iterable[float]) -> float:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else math.nan


# figure -> (over the series of one engine, over engines)
_RULES: Mapping[str, tuple[Callable[[Iterable[float]], float], Callable[[Iterable[float]], float]]] = {
    "kv_usage": (max, max),
    "waiting": (sum, sum),
    "running": (sum, sum),
    "waiting_for_capacity": (sum, sum),
    "capacity_tokens": (_agreed, sum),
    "capacity_blocks": (_agreed, sum),
    "block_tokens": (max, max),
    "max_sequences": (max, sum),
    "max_model_tokens": (min, min),
    "preemptions": (sum, sum),
    "generation_tokens": (sum, sum),
    "prompt_tokens": (sum, sum),
    "awake": (max, max),
}
_REQUIRED = frozenset({"kv_usage", "kv_used", "kv_total", "waiting", "running"})


def readings_from(
    samples: Samples, preset: Preset, *, instance: str, per_engine: bool = False
) -> list[Reading]:
    """Return one fused reading, or one for each engine (`instance#rank`) when asked.

    Raises:
        ProbeError: the level, or every figure, is missing, or a figure that decides is not finite.
        InvalidReading: a figure is out of range.
    """
    table = {figure: _by_rank(samples, preset, figure) for figure in _RULES}
    table["kv_usage"] = levels = _levels(table, samples, preset)
    if not levels and preset.has_kv_level:
        raise ProbeError(_missing(preset, "kv_usage", "kv_used"))
    working = table["waiting"].keys() | table["running"].keys()
    if not levels and not working:
        raise ProbeError(_missing(preset, "running", "waiting"))
    _refuse_unlevelled(levels, working)
    if preset.blocks_cover_all_ranks:
        table["capacity_blocks"] = _shared_out(table["capacity_blocks"])
    engines = sorted(rank for rank in levels or working if rank)
    if not per_engine or len(engines) < 2:
        return [_reading(table, None, instance)]
    return [_reading(table, engine, f"{instance}#{_name(engine)}") for engine in engines]


def _levels(table: Mapping[str, ByRank], samples: Samples, preset: Preset) -> ByRank:
    levels = table["kv_usage"] or _ratio(samples, preset)
    if preset.level_comes_with_work:
        levels |= {rank: {(): 0.0} for rank in _untouched(table) if rank not in levels}
    return levels


def _refuse_unlevelled(levels: ByRank, working: Iterable[Rank]) -> None:
    # Only among ranks told apart by the same labels: elsewhere a coarser label may mean the same engine.
    kinds = {tuple(label for label, _ in rank) for rank in levels}
    for rank in sorted(working):
        if rank not in levels and tuple(label for label, _ in rank) in kinds:
            raise ProbeError(f"engine {_name(rank)} states no level while others do: it is unknown, not 0.")


def _shared_out(by_rank: ByRank) -> ByRank:
    return {
        rank: {key: value / len(by_rank) for key, value in series.items()} for rank, series in by_rank.items()
    }


def _name(rank: Rank) -> str:
    return ".".join(value for _, value in rank)


def _by_rank(samples: Samples, preset: Preset, figure: str) -> ByRank:
    for place in preset.places.get(figure, ()):
        found = _collapse(samples, place)
        if not found:
            continue
        if all(math.isfinite(value) for series in found.values() for value in series.values()):
            return found
        if figure in _REQUIRED:
            raise ProbeError(f"{place.name} holds NaN or an infinity: {figure} is unknown, not 0.")
        return {}
    return {}


def _collapse(samples: Samples, place: Selector) -> ByRank:
    """Group by engine and series; of copies the highest counts, and NaN survives."""
    found: ByRank = {}
    for labels, value in place.figures(samples):
        rank = tuple((name, labels[name]) for name in RANK_LABELS if labels.get(name))
        # An info metric's labels are its content, not names of separate series.
        series: Series = ()
        if place.from_label is None:
            series = tuple(
                sorted(
                    item
                    for item in labels.items()
                    if item[0] not in COPY_LABELS and item[0] not in RANK_LABELS
                )
            )
        known = found.setdefault(rank, {})
        previous = known.get(series, value)
        known[series] = math.nan if math.isnan(value) or math.isnan(previous) else max(previous, value)
    return found


def _untouched(table: Mapping[str, ByRank]) -> list[Rank]:
    """Return the engines that have computed no token since they started: nothing can be in their cache."""
    made, read = table["generation_tokens"], table["prompt_tokens"]
    return [rank for rank in made if rank in read and not any((*made[rank].values(), *read[rank].values()))]


def _ratio(samples: Samples, preset: Preset) -> ByRank:
    used, total = _by_rank(samples, preset, "kv_used"), _by_rank(samples, preset, "kv_total")
    totals = [capacity for series in total.values() for capacity in series.values()]
    only = totals[0] if len(totals) == 1 else 0.0
    level: ByRank = {}
    for rank, series in used.items():
        for key, blocks in series.items():
            capacity = total.get(rank, {}).get(key, only)
            if capacity > 0:
                level.setdefault(rank, {})[key] = blocks / capacity
    return level


def _reading(table: Mapping[str, ByRank], engine: Rank | None, instance: str) -> Reading:
    figures = {figure: _combine(table[figure], figure, engine) for figure in _RULES}
    capacity = figures["capacity_tokens"]
    if capacity is None and figures["capacity_blocks"] and figures["block_tokens"]:
        capacity = figures["capacity_blocks"] * figures["block_tokens"]
    return Reading(
        kv_usage=figures["kv_usage"],
        waiting=_whole(figures["waiting"]),
        running=_whole(figures["running"]),
        waiting_for_capacity=_whole(figures["waiting_for_capacity"]),
        # A capacity of nothing is an engine that has not measured its memory yet.
        capacity_tokens=_whole(capacity) or None,
        block_tokens=_whole(figures["block_tokens"]) or None,
        max_sequences=_whole(figures["max_sequences"]) or None,
        max_model_tokens=_whole(figures["max_model_tokens"]) or None,
        preemptions=figures["preemptions"],
        generation_tokens=figures["generation_tokens"],
        prompt_tokens=figures["prompt_tokens"],
        asleep=figures["awake"] == 0.0,
        instance=instance,
    )


def _combine(by_rank: ByRank, figure: str, engine: Rank | None) -> float | None:
    """Return the figure of one engine, or of all when `engine` is None."""
    over_series, over_ranks = _RULES[figure]
    if engine is None:
        taken = [rank for rank in by_rank if rank] or list(by_rank)
    elif engine in by_rank:
        taken = [engine]
    else:
        # Stated once for several engines. A sum cannot be shared out among them; a level or limit can.
        taken = [rank for rank in by_rank if over_ranks is not sum and set(rank) < set(engine)]
    combined = over_ranks(over_series(by_rank[rank].values()) for rank in taken) if taken else math.nan
    return None if math.isnan(combined) else combined


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _missing(preset: Preset, *figures: str) -> str:
    names = [place.name for figure in figures for place in preset.places.get(figure, ())]
    return (
        f"this is {preset.title}, but none of {', '.join(names)} is there; "
        f"place the figure yourself with probe.names, e.g. {figures[0]} = 'metric_name'."
    )
