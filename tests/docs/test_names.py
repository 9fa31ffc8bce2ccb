"""What the documentation names exists: settings, metrics, log lines, alerts, commands, extras."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

import tidegate
from tests.browser.test_grafana import alerts, exported
from tests.docs.pages import PAGES, ROOT, anchors, blocks, headings, name_of, spans, text_of
from tidegate.cli import _parser
from tidegate.settings import Settings

RUNBOOKS = [ROOT / "docs" / "how-to" / name for name in ("runbook.md", "runbook.zh-CN.md")]
SOURCES = sorted(Path(tidegate.__file__).parent.rglob("*.py"))
SHORTEST = 12  # letters of a message of which a quotation is one


def options() -> Iterator[tuple[str, str]]:
    """Every section with its options."""
    for section, field in Settings.model_fields.items():
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in kinds:
            if is_dataclass(kind):
                yield from ((section, one.name) for one in fields(kind))
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from ((section, name) for name in kind.model_fields)


@cache
def messages() -> list[str]:
    """Whatever the server half may say, `\\0` where a figure or a name goes."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(p.value) if isinstance(p, ast.Constant) else "\0" for p in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sdr]|%\.\d+f", "\0", node.value))
    return [re.sub(r"^Tidegate: ", "", text) for text in found if len(text) >= SHORTEST]


def says(message: str, quoted: str) -> bool:
    """Whether both can be the same text, or the quotation its beginning; `\0` stands for anything."""
    if message[:4] != quoted[:4] or len(message.replace("\0", "")) < SHORTEST:
        return False
    reached = {0}  # places of the message that agree with what has been read of the quotation
    for letter in quoted:
        after: set[int] = set()
        for place in _past_blanks(message, reached):
            if letter == "\0":
                after.update(range(place, len(message) + 1))
            elif message[place : place + 1] == "\0":
                after.add(place)
            elif message[place : place + 1] == letter:
                after.add(place + 1)
        reached = after
    return bool(reached)


def _past_blanks(message: str, places: set[int]) -> set[int]:
    return places | {place + 1 for place in places if message[place : place + 1] == "\0"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_exist(page: Path) -> None:
    """`section.option`, and the variables of the environment."""
    known = set(options())
    sections = {section for section, _ in known}
    text = text_of(page)
    for section, name in re.findall(r"`([a-z_]+)(?:\[\])?\.([a-z_]+)\b", text):
        if section in sections and name != "py":
            assert (section, name) in known, f"{section}.{name}"
    names = {f"TIDEGATE_{section}__{name}".upper() for section, name in known}
    names |= {f"TIDEGATE_{section}".upper() for section in Settings.model_fields}
    names |= {"TIDEGATE_CONFIG", "TIDEGATE_ENGINE_HOME"}
    for variable in re.findall(r"\bTIDEGATE_[A-Z_]*[A-Z]", text):
        assert variable in names, variable


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "results.md"], ids=name_of)
def test_metrics_exist(page: Path) -> None:
    """With the suffix that a scrape shows. (The results have rows of such names.)"""
    shown = exported()
    for name in re.findall(r"\btidegate_(?!client)[a-z_]+[a-z]", text_of(page)):
        assert name in shown or f"{name}_bucket" in shown, name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_log_lines_are_what_the_log_says(page: Path) -> None:
    """Quoted as `Tidegate: ...`, with dots for what differs."""
    said = messages()
    for span in spans(text_of(page)):
        if span.startswith("Tidegate: ") and span.strip(". ") != "Tidegate:":
            quoted = span.removeprefix("Tidegate: ").replace("...", "\0")
            assert any(says(message, quoted) for message in said), span


@pytest.mark.parametrize("page", RUNBOOKS, ids=name_of)
def test_every_alert_has_its_section(page: Path) -> None:
    """In both languages, and no section is of an alert that is gone."""
    rules = alerts()
    assert {rule["alert"] for rule in rules} == {one for one in headings(page) if one.startswith("Tidegate")}
    for rule in rules:
        path, anchor = rule["annotations"]["runbook"].split("#")
        assert (ROOT / path).exists()
        assert anchor in anchors(page)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_understood(page: Path) -> None:
    """`tidegate ...` by its own parser; scripts and examples are there."""
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["tidegate"]:
                _parser().parse_args(words[1:])
            for word in words:
                if re.match(r"(scripts|examples)/[\w/.]+$", word):
                    assert (ROOT / word).exists(), word


def test_extras_exist() -> None:
    """`pip install 'tidegate[extra]'`."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for page in PAGES:
        for extra in re.findall(r"tidegate\[([\w,]+)\]", text_of(page)):
            for name in extra.split(","):
                assert re.search(rf"^{name} = \[", project, re.MULTILINE), f"{page}: {extra}"
