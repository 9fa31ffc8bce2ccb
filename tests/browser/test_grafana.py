"""The dashboard and the alert rules name only metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tidegate.telemetry.prometheus import MODES, SIGNAL_STATES, PrometheusHook

HOME = Path(__file__).parents[2] / "docs" / "grafana"
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
TARGET_LABELS = {"job", "instance", "le"}
"""Labels that Prometheus adds itself; ours of the same name arrive as `exported_...`."""


def exported() -> dict[str, set[str]]:
    """Every name a scrape can show, with the labels of its samples."""
    registry = CollectorRegistry()
    hook = PrometheusHook(registry)
    labels = {
        metric._name: set(metric._labelnames)
        for metric in vars(hook).values()
        if hasattr(metric, "_labelnames")
    }
    return {
        family.name + suffix: labels[family.name]
        for family in registry.collect()
        for suffix in SUFFIXES[family.type]
    }


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads((HOME / "tidegate.json").read_text(encoding="utf-8"))
    return found


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    yaml: Any = pytest.importorskip("yaml")
    found = yaml.safe_load((HOME / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Title and query of everything that asks Prometheus."""
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for rule in alerts():
        yield rule["alert"], rule["expr"]


def test_every_metric_and_label_exists() -> None:
    """A renamed metric or label breaks a picture only after this test."""
    known = exported()
    for title, expression in expressions():
        names = re.findall(r"\btidegate_\w+", expression)
        assert names, title
        for name in names:
            assert name in known, f"{title}: {name}"
        ours = set().union(*(known[name] for name in names))
        allowed = TARGET_LABELS | ours | {f"exported_{label}" for label in ours & TARGET_LABELS}
        used = {
            label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")
        }
        used |= set(re.findall(r"(\w+)\s*=~?(?!=)", expression))
        assert used <= allowed, f"{title}: {used - allowed}"


def test_states_and_modes_in_matchers_exist() -> None:
    """A matcher for a state nobody sets never fires."""
    for title, expression in expressions():
        for label, values in re.findall(r'\b(state|mode)=~?"([^"]*)"', expression):
            known = SIGNAL_STATES if label == "state" else MODES
            assert set(values.split("|")) <= set(known), title


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    """The dashboard's grid is sound."""
    cells: set[tuple[int, int]] = set()
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= mine


def test_every_alert_says_what_to_do() -> None:
    """An alert without an action only wakes people; a panel that it names is on the dashboard."""
    titles = {panel["title"] for panel in dashboard()["panels"]}
    for rule in alerts():
        quoted = re.findall(r"'([A-Z][^']*)'", rule["annotations"]["action"])
        assert {name for name in quoted if not name.startswith("Tidegate: ")} <= titles
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]
