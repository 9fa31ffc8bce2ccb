"""What an operator reads who has written something wrong: the field, the value and the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_settings import options_with_defaults
from tidegate import InvalidSettings, Settings
from tidegate.settings_errors import named_setting


def said_of(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The error of a TOML file."""
    file = tmp_path / "tidegate.toml"
    file.write_text(text)
    monkeypatch.setenv("TIDEGATE_CONFIG", str(file))
    with pytest.raises(InvalidSettings) as caught:
        Settings.load()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tenants = 3",
            "tenants: give a list; in TOML each of them begins with [[tenants]], in double brackets.",
        ),
        ('[tenants]\nname = "a"', "tenants: give a list; in TOML each of them begins with [[tenants]]"),
        ('[[tenants]]\nkeys = ["k"]', "tenants[0].name is missing: set it."),
        ('[[tenants]]\nname = "a"\nweight = 0', "tenants[a].weight is 0.0: set a finite number above 0."),
        ('[[tenants]]\nname = "a"\nfields = {priorit = "allow"}', "Did you mean 'priority'?"),
        ("[default_tenant]\nweight = 0", "default_tenant.weight is 0.0: set"),
        (
            '[default_tenant]\npriority_class = "gold"',
            "default_tenant.priority_class is 'gold': choose one of",
        ),
        ('[[classes]]\nname = "vip"', "default_tenant.priority_class is 'standard': choose one of vip."),
        ('[[classes]]\nname = "a"\nweight = "b"', "classes[0].weight is 'b': give a number"),
        ("[kv]\nhigh_watermark = true", "kv: high_watermark is True: give a number."),
        ("kv = 3", "kv is '3': this is a group: set its options, as kv.NAME or TIDEGATE_KV__NAME."),
        ('[queue]\nmax_bytes = "10MB"', "queue.max_bytes is '10MB': give a whole number, without a unit."),
        ("[body]\nmax_bytes = 0", "body.max_bytes is '0': give 1 or more."),
        ("[reply]\nsaturation_status = 500", "reply.saturation_status is '500': choose 429 or 503."),
        ('[identity]\nflex_class = "cheap"', "identity.flex_class is 'cheap': choose one of system, vip,"),
        (
            '[probe]\nengine = "vlm"',
            "probe.engine is 'vlm': 'vlm' is no preset, expected auto or one of vllm",
        ),
        ("processes = 0", "processes is '0': give 1 or more."),
    ],
)
def test_a_wrong_file_is_told_with_field_value_and_way_out(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with nothing else: no consequence of it, no class of ours."""
    said = said_of(text, tmp_path, monkeypatch)
    assert message in said
    assert "; " not in said.replace("a list; in TOML", "")
    assert "Options" not in said
    assert "factory" not in said


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TIDEGATE_PROBE__NAMES", "x", "TIDEGATE_PROBE__NAMES is not valid JSON"),
        ("TIDEGATE_TENANTS", "gold", "TIDEGATE_TENANTS is not valid JSON"),
        ("TIDEGATE_IDENTITY__TRUSTED_PROXIES", '["10.0.0.0/8"', "identity.trusted_proxies"),
        (
            "TIDEGATE_PROBE__URLS",
            "localhost:8000",
            "probe.urls is 'localhost:8000': 'localhost:8000' is no page",
        ),
    ],
)
def test_a_wrong_variable_is_named_itself(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the group it belongs to."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSettings) as caught:
        Settings.load()
    assert message in str(caught.value)


def test_two_faults_are_one_readable_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told together, each with its way out."""
    monkeypatch.setenv("TIDEGATE_MODE", "shadw")
    monkeypatch.setenv("TIDEGATE_CONSOLE__ADMIN_TOKEN", "short")
    with pytest.raises(InvalidSettings, match=r"^mode is 'shadw': choose .*'off'; console\.admin_token: use"):
        Settings.load()


def test_a_file_that_is_no_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong path in TIDEGATE_CONFIG."""
    file = tmp_path / "program"
    file.write_bytes(b"\x7fELF\xd0")
    monkeypatch.setenv("TIDEGATE_CONFIG", str(file))
    with pytest.raises(InvalidSettings, match="program is not valid TOML"):
        Settings.load()


@pytest.mark.parametrize(
    "text",
    [
        'tenants = "sk-secret"',
        'tenants = ["sk-secret"]',
        '[[tenants]]\nname = "a"\nkeys = "sk-secret"',
        '[probe]\nurls = ["http://u:sk-secret@127.0.0.1:8000"]',
    ],
)
def test_keys_in_the_wrong_place_are_not_shown(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error message ends up in a log."""
    assert "sk-secret" not in said_of(text, tmp_path, monkeypatch)


@pytest.mark.parametrize("given", ["10.0.0.0/8, unix", '["10.0.0.0/8", "unix"]'])
def test_lists_of_texts_are_written_with_commas_or_as_json(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the environment; a file has lists of its own."""
    monkeypatch.setenv("TIDEGATE_IDENTITY__TRUSTED_PROXIES", given)
    monkeypatch.setenv("TIDEGATE_CORS__ALLOW_ORIGINS", "https://a.example,https://b.example")
    monkeypatch.setenv("TIDEGATE_GUARD__EXEMPT", "/a,/b")
    settings = Settings.load()
    assert settings.identity.trusted_proxies == ("10.0.0.0/8", "unix")
    assert settings.cors.allow_origins == ("https://a.example", "https://b.example")
    assert settings.guard.exempt == ("/a", "/b")


def in_environment(value: Any) -> str:
    """A value as an environment variable says it."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value)


LISTS_OF_TABLES = ("tenants", "classes")
WITH_DEFAULT = [
    name
    for name, default in options_with_defaults().items()
    if default != "unset" and name.partition("[]")[0] not in LISTS_OF_TABLES
]


@pytest.mark.parametrize("name", WITH_DEFAULT)
def test_every_option_can_be_set_by_its_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option's own default, written into the environment, is read back as it was."""
    settings = Settings.load()
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    monkeypatch.setenv("TIDEGATE_" + name.upper().replace(".", "__"), in_environment(value))
    assert Settings.load() == settings


@pytest.mark.parametrize(
    ("message", "setting"),
    [
        ("kv.high_watermark is 82.0: give a fraction.", "kv.high_watermark"),
        ("tenants[2].keys[0] is wrong", "tenants[2].keys[0]"),
        ("TIDEGATE_KV__X is set, but there is no such option.", "TIDEGATE_KV__X"),
        ("/etc/secret place.toml is not valid TOML", "TIDEGATE_CONFIG"),
    ],
)
def test_a_stranger_hears_the_name_of_the_setting_only(message: str, setting: str) -> None:
    """The 503 of a server without a lifespan is open to everybody."""
    assert named_setting(message) == setting


def test_the_query_of_an_address_is_not_shown() -> None:
    """It may hold a token."""
    with pytest.raises(InvalidSettings) as caught:
        Settings.load(probe={"urls": "http://a/m?token=hidden,http://a/m?token=hidden"})
    assert "listed twice" in str(caught.value)
    assert "hidden" not in str(caught.value)
