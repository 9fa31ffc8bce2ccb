"""The pictures of docs/results.md.

Law of this file: matplotlib is imported only here, and only draws what it is given.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

OURS, OTHERS, ORACLE = "#0b7285", "#adb5bd", "#495057"


def _figure(columns: int, height: float) -> tuple[Any, Any]:
    matplotlib = import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"font.size": 9, "svg.hashsalt": "tidegate", "svg.fonttype": "none"})
    figure, axes = import_module("matplotlib.pyplot").subplots(
        1, columns, figsize=(4.6 * columns, height), layout="constrained", squeeze=False
    )
    return figure, axes[0]


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    import_module("matplotlib.pyplot").close(figure)


def _colour(policy: str) -> str:
    return OURS if policy == "tidegate" else ORACLE if policy == "oracle" else OTHERS


def _bars(axis: Any, labels: list[str], values: list[float], colours: list[str], title: str) -> None:
    places = range(len(labels))
    axis.barh(places, values, color=colours)
    axis.set_yticks(places, labels)
    axis.invert_yaxis()
    axis.set_title(title)
    axis.spines[["top", "right"]].set_visible(False)


def kv_picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Preemptions against throughput, one point a policy and workload."""
    figure, (axis,) = _figure(1, 4.0)
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == policy]
        axis.scatter(
            [row["preemptions_per_1000"] for row in mine],
            [row["throughput_vs_oracle"] for row in mine],
            label=policy,
            s=45 if policy == "tidegate" else 25,
            color=OURS if policy == "tidegate" else None,
            marker="D" if policy == "tidegate" else "o",
            zorder=3 if policy == "tidegate" else 2,
        )
    axis.set_xscale("symlog", linthresh=1.0)
    axis.set_xlabel("preemptions per 1,000 requests")
    axis.set_ylabel("throughput, share of the oracle's")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    _save(figure, path)


def refused_picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Success within three tries, and attempts per success of obedient clients."""
    tries = [row for row in rows if "three tries" in row["scenario"] and "stock" not in row["scenario"]]
    obedient = [row for row in rows if "obedient clients" in row["scenario"]]
    figure, (left, right) = _figure(2, 3.2)
    panels = (
        (left, tries, "success", "share that succeeds within three tries"),
        (right, obedient, "attempts_per_success", "attempts per success, obedient clients"),
    )
    for axis, mine, key, title in panels:
        labels = [f"{row['policy']}\n{row['scenario'].split(', ')[0]}" for row in mine]
        _bars(axis, labels, [row[key] for row in mine], [_colour(row["policy"]) for row in mine], title)
        axis.tick_params(axis="y", labelsize=7)
    _save(figure, path)


def flood_picture(result: dict[str, Any], path: Path) -> None:
    """Preemptions, goodput and the VIP's wait, by workload and front."""
    cells = [
        (workload, front, cell)
        for workload, fronts in result["cells"].items()
        for front, cell in fronts.items()
        if cell is not None
    ]
    figure, axes = _figure(3, 3.0)
    labels = [f"{front}, {workload}" for workload, front, _ in cells]
    colours = [_colour(front) for _, front, _ in cells]
    panels = (
        ("preemptions", [cell["preemptions"]["median"] for *_, cell in cells]),
        ("output tokens per second", [cell["goodput_tokens_per_s"]["median"] for *_, cell in cells]),
        ("VIP time to first token, p95, s", [cell["vip_ttft_s"]["p95"] for *_, cell in cells]),
    )
    for axis, (title, values) in zip(axes, panels, strict=True):
        _bars(axis, labels, values, colours, title)
    _save(figure, path)
