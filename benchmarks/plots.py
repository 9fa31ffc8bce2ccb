"""Writes docs/results.md and its plots from the JSON files of the benchmarks.

    pip install -r benchmarks/requirements.txt
    python -m benchmarks.plots

Law of this file: every figure in the page comes from benchmarks/results/; the notes at its end hold words
only. A result that has not been measured has no section.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.plots_pictures import flood_picture, kv_picture, refused_picture
from benchmarks.policies_report import figure

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/results.md"
PICTURES = ROOT / "docs/results"
NOTES = ROOT / "benchmarks/plots_notes.md"  # words only

INTRODUCTION = """# Results

Written by `python -m benchmarks.plots` from the files in `benchmarks/results/`; do not edit by hand.
What each benchmark does and how to run it is in [benchmarks/README.md](../benchmarks/README.md); how the
gate decides is in [theory.md](theory.md).
"""


def table(header: list[str], rows: list[list[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *([figure(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def targets(result: dict[str, Any]) -> str:
    """The promises and whether they are kept."""
    rows: list[list[object]] = [
        [
            target["name"],
            float(target["value"]),
            f"{'at most' if target['relation'] == '<=' else 'at least'} {target['bound']:g}",
            "yes" if target["met"] else "**no**",
        ]
        for target in result["targets"]
    ]
    kept = sum(target["met"] for target in result["targets"])
    return f"{kept} of {len(rows)} targets met.\n\n" + table(["target", "measured", "bound", "met"], rows)


def rows_by_shape(rows: list[dict[str, Any]]) -> str:
    """One table for each set of columns."""
    shapes: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        shapes.setdefault(tuple(row), []).append(row)
    return "\n".join(
        table([name.replace("_", " ") for name in shape], [[row[name] for name in shape] for row in alike])
        for shape, alike in shapes.items()
    )


def policies(result: dict[str, Any]) -> str:
    """The simulation."""
    parts = [
        "## Policies, simulated\n",
        f"`python -m benchmarks.policies{' --full' if result['full'] else ''}`, "
        f"{result['requests']:,} requests, on {result['machine']}. The engine is simulated: "
        "paged KV with 80,000 tokens, continuous batching, preemption by recompute. "
        "The core is the real one.\n",
        targets(result),
    ]
    titles = {
        "kv": "### KV cache: twice the load that fits",
        "fairness": "### Who goes first",
        "burst": "### Being refused",
        "cost": "### What the core costs",
    }
    pictures = {"kv": kv_picture, "burst": refused_picture}
    for group, title in titles.items():
        if group not in result:
            continue
        parts.append(f"{title}\n")
        if group in pictures:
            parts.append(picture(pictures[group], result[group], f"policies-{group}", title.strip("# ")))
        parts.append(rows_by_shape(result[group]))
    return "\n".join(parts)


def picture(draw: Callable[[Any, Path], None], data: Any, name: str, title: str) -> str:
    """Draws it, and the Markdown that shows it."""
    PICTURES.mkdir(exist_ok=True)
    draw(data, PICTURES / f"{name}.svg")
    return f"![{title}](results/{name}.svg)\n"


def _range(spread: dict[str, float]) -> str:
    return f"{figure(spread['median'])} [{figure(spread['least'])} - {figure(spread['most'])}]"


def flood(result: dict[str, Any]) -> str:
    """The real engine."""
    rows: list[list[object]] = []
    for workload, cells in result["cells"].items():
        for front, cell in cells.items():
            if cell is None:
                continue
            vip, delay = cell["vip_ttft_s"], cell["own_delay_p99_s"]
            rows.append(
                [
                    workload,
                    front,
                    _range(cell["preemptions"]),
                    _range(cell["goodput_tokens_per_s"]),
                    " / ".join(figure(vip[share]) for share in ("p50", "p95", "p99")),
                    f"{1000 * delay['jobs']:.0f} / {1000 * delay['vip']:.0f}",
                ]
            )
    idle = result["idle_ttft_s"]["nothing"]
    header = ["workload", "front", "preemptions", "output tokens/s", "VIP TTFT p50 / p95 / p99, s"]
    return "\n".join(
        [
            "## Flood of a real vLLM\n",
            f"`python -m benchmarks.flood --runs {result['runs']}` on {result['machine']}; vLLM for the CPU, "
            "KV of 16,384 tokens; medians of the runs with their range, VIP figures pooled. The VIP's time "
            f"to first token on the idle engine: p50 {figure(idle['p50'])} s, p95 {figure(idle['p95'])} s.\n",
            targets(result),
            picture(flood_picture, result, "flood", "Flood of a real vLLM"),
            table([*header, "own delay p99 of jobs / VIP generator, ms"], rows),
        ]
    )


def overhead(result: dict[str, Any]) -> str:
    """The shell's cost."""
    missing = result["not_installed"]
    left_out = f" Not installed, left out: {', '.join(missing)}." if missing else ""
    crowd = {key: value for key, value in result["crowd"].items() if not isinstance(value, dict)}
    return "\n".join(
        [
            "## Overhead\n",
            f"`python -m benchmarks.overhead` on {result['machine']}: 1 KB JSON POST, uvicorn, wrk with 16 "
            f"connections for the rate and one for the latencies; medians of the rounds.{left_out}\n",
            targets(result),
            rows_by_shape(result["rates"]),
            "Processor time of the server for one streamed answer of 1,000 chunks, ms:\n",
            rows_by_shape([result["streams_cpu_ms"]]),
            "Memory of requests that wait, bytes:\n",
            rows_by_shape([crowd]),
        ]
    )


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "flood": flood,
    "policies": policies,
    "overhead": overhead,
}


def main() -> None:
    """Writes the page."""
    parts = [INTRODUCTION]
    for name, section in SECTIONS.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            parts.append(section(json.loads(path.read_text())))
    parts.append(NOTES.read_text())
    PAGE.write_text("\n".join(parts))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
