"""Configuration: who wins, what is refused, what is said, and that the reference is true."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tidegate import InvalidSettings, Settings
from tidegate.core.options import ClassOptions
from tidegate.settings import TenantSettings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def toml(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text(text)
    monkeypatch.setenv("TIDEGATE_CONFIG", str(file))


def test_keyword_wins_over_environment_over_file_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each source is heard where no stronger one speaks."""
    toml(
        tmp_path, 'mode = "shadow"\n[kv]\nhigh_watermark = 0.7\nblock_tokens = 32\nmargin = 0.1', monkeypatch
    )
    monkeypatch.setenv("TIDEGATE_KV__HIGH_WATERMARK", "0.8")
    monkeypatch.setenv("TIDEGATE_KV__BLOCK_TOKENS", "64")
    settings = Settings.load(kv={"high_watermark": 0.9})
    assert settings.kv.high_watermark == 0.9
    assert settings.kv.block_tokens == 64
    assert settings.kv.margin == 0.1
    assert settings.mode == "shadow"
    assert settings.kv.max_sequences is None


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("TIDEGATE_KV__HIGH_WATERMARK", "90", ["kv.high_watermark", "90", "0.9"]),
        ("TIDEGATE_KV__HIGH_WATERMARK", "nan", ["kv.high_watermark", "nan"]),
        ("TIDEGATE_KV__HIGHWATERMARK", "0.9", ["highwatermark", "high_watermark"]),
        ("TIDEGATE_KVV__HIGH_WATERMARK", "0.9", ["TIDEGATE_KVV__HIGH_WATERMARK", "TIDEGATE_KV"]),
        ("TIDEGATE_MODE", "enforced", ["mode", "enforced", "'shadow'"]),
        ("TIDEGATE_TENANTS", "gold", ["TIDEGATE_TENANTS", "JSON"]),
        ("TIDEGATE_TENANTS", '[{"name": "a", "priority": "vip"}]', ["priority", "priority_class"]),
        ("TIDEGATE_TENANTS", '[{"name": "a", "priority_class": "vipp"}]', ["tenants[a]", "vipp", "vip"]),
        ("TIDEGATE_TENANTS", '[{"name": "a"}, {"name": "a"}]', ["given twice", "a"]),
        ("TIDEGATE_TENANTS", '[{"name": "a", "request_burst": 5}]', ["request_burst", "requests_per_s"]),
        ("TIDEGATE_REPLY__MAX_RETRY_AFTER_S", "0.2", ["reply.max_retry_after_s", "0.2", "1"]),
        ("TIDEGATE_PROBE__SOURCE", "prometheus", ["probe", "urls"]),
        ("TIDEGATE_CONFIG", "/no/such/file.toml", ["TIDEGATE_CONFIG", "/no/such/file.toml"]),
    ],
)
def test_a_wrong_value_is_told_with_field_value_and_way_out(
    variable: str, value: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an operator needs to read at start."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSettings) as caught:
        Settings.load()
    for part in told:
        assert part in str(caught.value)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser's own message does not say which file."""
    toml(tmp_path, "mode = shadow", monkeypatch)
    with pytest.raises(InvalidSettings, match=r"tidegate\.toml is not valid TOML"):
        Settings.load()


def test_an_unknown_section_of_the_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt section is not a silent default."""
    toml(tmp_path, "[queues]\nmax_requests = 5", monkeypatch)
    with pytest.raises(InvalidSettings, match=r"'queues'.*'queue'"):
        Settings.load()


def test_contradictory_classes_are_refused() -> None:
    """A starvation bound beyond the longest wait would never be reached."""
    with pytest.raises(InvalidSettings, match="starvation_s"):
        Settings.load(classes=[{"name": "standard", "max_wait_s": 3, "starvation_s": 5}])


def test_keys_are_never_shown() -> None:
    """Neither in an error nor in a representation."""
    secret = "sk-very-secret"
    settings = Settings.load(tenants=[{"name": "a", "keys": [secret]}])
    assert secret not in repr(settings)
    for wrong in (
        {"keys": [secret], "name": ""},
        {"keys": secret, "name": "a"},
        {"keys": [[secret]], "name": "a"},
    ):
        with pytest.raises(InvalidSettings) as caught:
            Settings.load(tenants=[wrong])
        assert secret not in str(caught.value)


def test_two_tenants_cannot_share_a_key() -> None:
    """Else who is asking would depend on the order of the file."""
    with pytest.raises(InvalidSettings, match="share a key"):
        Settings.load(tenants=[{"name": "a", "keys": ["k"]}, {"name": "b", "keys": ["k"]}])


def test_settings_cannot_be_changed_afterwards() -> None:
    """Frozen, down to the groups."""
    settings = Settings.load()
    with pytest.raises(Exception, match="frozen"):
        settings.mode = "off"
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.kv.margin = 0.1  # type: ignore[misc]


def options_with_defaults() -> dict[str, str]:
    """Every option by its dotted name, with its default as the reference writes it."""
    found: dict[str, str] = {}
    for name, field in Settings.model_fields.items():
        kind: Any = {"classes": ClassOptions, "tenants": TenantSettings}.get(name, type(field.default))
        prefix = f"{name}[]." if name in ("classes", "tenants") else f"{name}."
        if dataclasses.is_dataclass(kind):
            for part in dataclasses.fields(kind):
                found[prefix + part.name] = shown(part.default)
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            for inner, inner_field in kind.model_fields.items():
                default = inner_field.get_default(call_default_factory=True, validated_data={})
                found[prefix + inner] = shown(default)
        else:
            found[name] = shown(field.default)
    return found


def shown(default: object) -> str:
    if default is PydanticUndefined or default is dataclasses.MISSING:
        return "required"
    if default is None:
        return "unset"
    if isinstance(default, bool):
        return str(default).lower()
    return repr(default).replace("'", '"')


def test_the_reference_lists_every_option_with_its_default_and_no_other() -> None:
    """The documentation cannot fall behind."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]*)` \| (.+) \|$", REFERENCE.read_text(), re.MULTILINE)
    written = {name: default for name, default, _ in rows}
    assert written == options_with_defaults()
    assert all(len(text) > 10 for _, _, text in rows)


@pytest.mark.parametrize("service", ["TIDEGATE", "TIDEGATE_METRICS"])
def test_a_kubernetes_service_of_our_name_is_no_wrong_option(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes puts its address into every pod of the namespace, so no server there would start."""
    for end, value in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "80",
        "SERVICE_PORT_HTTP": "80",
        "PORT": "tcp://10.0.0.1:80",
        "PORT_80_TCP": "tcp://10.0.0.1:80",
        "PORT_80_TCP_PROTO": "tcp",
        "PORT_80_TCP_PORT": "80",
        "PORT_80_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(f"{service}_{end}", value)
    assert Settings.load() == Settings()
    monkeypatch.setenv("TIDEGATE_MODUS", "shadow")
    with pytest.raises(InvalidSettings, match="TIDEGATE_MODUS"):
        Settings.load()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("TIDEGATE_KV_HIGH_WATERMARK", "TIDEGATE_KV__HIGH_WATERMARK"),
        ("TIDEGATE_PROBE_URLS", "TIDEGATE_PROBE__URLS"),
        ("TIDEGATE_QUEUE_MAX_REQUESTS", "TIDEGATE_QUEUE__MAX_REQUESTS"),
        ("TIDEGATE_CONSOLE_ADMIN_TOKEN", "TIDEGATE_CONSOLE__ADMIN_TOKEN"),
        ("TIDEGATE_DEFAULT_TENANT_REQUESTS_PER_S", "TIDEGATE_DEFAULT_TENANT__REQUESTS_PER_S"),
        ("TIDEGATE_MODUS", "TIDEGATE_MODE"),
    ],
)
def test_a_variable_with_one_underscore_too_few_is_told_the_right_one(
    monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    """Two stand between a group and its option; a mere likeness once suggested another option."""
    monkeypatch.setenv(written, "1")
    with pytest.raises(InvalidSettings) as caught:
        Settings.load()
    assert f"Did you mean '{meant}'?" in str(caught.value)


def test_a_port_is_an_unknown_option_where_there_is_no_such_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be meant for us."""
    monkeypatch.setenv("TIDEGATE_PORT", "8000")
    with pytest.raises(InvalidSettings, match="TIDEGATE_PORT"):
        Settings.load()
