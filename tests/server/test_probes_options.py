"""The settings group `probe`."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tidegate.probes.options import ProbeOptions


class Outer(BaseSettings):
    """As the settings of the whole compose the group."""

    model_config = SettingsConfigDict(env_prefix="T_", env_nested_delimiter="__")
    probe: ProbeOptions = ProbeOptions()


def test_defaults_go_together() -> None:
    """Fresh for three intervals, an idle engine asked every two, near the watermark four times a second."""
    options = ProbeOptions()

    assert (options.source, options.on_blind) == ("auto", "local")
    assert (options.interval_s, options.idle_interval_s, options.stale_after_s) == (1.0, 2.0, 3.0)
    assert options.pace.min_interval_s == 0.25
    assert options.pace.timeout_s > options.timeout_s


def test_a_longer_interval_takes_the_others_along() -> None:
    """Only the interval has to be set."""
    options = ProbeOptions(interval_s=10)

    assert (options.idle_interval_s, options.stale_after_s) == (20.0, 30.0)
    assert ProbeOptions(interval_s=0.1).pace.min_interval_s == 0.1


def test_the_environment_speaks_in_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """URLs are comma-separated, headers are JSON, names are nested."""
    monkeypatch.setenv("T_PROBE__URLS", "http://a:1/metrics, https://b/metrics,")
    monkeypatch.setenv("T_PROBE__HEADERS", '{"X-Scope": "s"}')
    monkeypatch.setenv("T_PROBE__NAMES__KV_USAGE", "my:level")
    monkeypatch.setenv("T_PROBE__BEARER_TOKEN", "s3cret")

    options = Outer().probe

    assert options.urls == ("http://a:1/metrics", "https://b/metrics")
    assert options.names == {"kv_usage": "my:level"}
    assert options.request_headers == {"X-Scope": "s", "Authorization": "Bearer s3cret"}


def test_secrets_are_never_shown() -> None:
    """Neither repr nor an error prints a token or a header's value."""
    options = ProbeOptions(bearer_token=SecretStr("s3cret"), headers={"X": SecretStr("h1dden")})
    assert "s3cret" not in repr(options)
    assert "h1dden" not in repr(options)

    with pytest.raises(ValidationError) as caught:
        ProbeOptions(bearer_token=SecretStr("s3cret\n"), urls=("http://user:pa55@host/metrics",))
    assert "s3cret" not in str(caught.value)
    assert "pa55" not in str(caught.value)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"source": "smoke"}, "source"),
    ({"source": "prometheus"}, r"urls is empty.*http://127\.0\.0\.1:8000/metrics"),
    ({"source": "shared_memory"}, "path is unset"),
    ({"source": "registry", "urls": "http://a/metrics"}, "drop one"),
    ({"urls": "localhost:8000"}, "'localhost:8000'.*URL such as"),
    ({"urls": "ftp://a/metrics"}, "'ftp://a/metrics'"),
    ({"urls": "http://a:99999/metrics"}, "is no page"),
    ({"urls": "http://a:x/metrics"}, "is no page"),
    ({"urls": "http:///metrics"}, "is no page"),
    ({"urls": "http://u:p@a/metrics"}, r"probe\.headers"),
    ({"urls": "http://a/m,http://a/m"}, "listed twice"),
    ({"urls": "http://a,http://a/metrics"}, "listed twice"),
    ({"engine": "vlllm"}, "'vlllm'.*auto.*vllm"),
    ({"names": {"kv": "x"}}, "'kv' is no figure.*kv_usage"),
    ({"names": {"kv_usage": "a b"}}, "'a b' is not a selector"),
    ({"interval_s": 0}, "interval_s"),
    ({"interval_s": float("nan")}, "interval_s"),
    ({"interval_s": 3, "stale_after_s": 3, "idle_interval_s": 2}, "stale_after_s is 3.*interval_s"),
    ({"idle_interval_s": 9}, r"idle_interval_s is 9.*stale_after_s \(3\)"),
    ({"timeout_s": -1}, "timeout_s"),
    ({"max_bytes": 10}, "max_bytes"),
    ({"headers": {"bad name": "x"}}, "'bad name' is no header name"),
    ({"headers": {"X": "a\r\nb"}}, "the value of X"),
    ({"bearer_token": " "}, "bearer_token is empty"),
    ({"client_key_file": "k.pem"}, "client_key_file is set without client_cert_file"),
    ({"ca_file": "ca.pem", "verify_tls": False}, "expected one of the two"),
    ({"on_blind": "maybe"}, "on_blind"),
    ({"colour": "red"}, "colour"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_wrong_values_name_field_value_and_way_out(values: dict[str, Any], message: str) -> None:
    """Refused when the options are made, not when the first reading fails."""
    with pytest.raises(ValidationError, match=message):
        ProbeOptions(**values)


def test_options_are_frozen() -> None:
    """They cannot change under a running poller."""
    options = ProbeOptions()
    with pytest.raises(ValidationError, match="frozen"):
        options.interval_s = 5.0


def test_tls_is_verified_unless_told_otherwise() -> None:
    """Without files httpx's own store is used."""
    assert ProbeOptions().tls_context() is True
    assert ProbeOptions(verify_tls=False).tls_context() is False


def test_a_missing_certificate_file_is_named(tmp_path: Path) -> None:
    """An unreadable or empty file is an error that says which option."""
    with pytest.raises(ValueError, match=r"probe\.ca_file.*PEM"):
        ProbeOptions(ca_file=tmp_path / "none.pem").tls_context()
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(ValueError, match=r"probe\.client_cert_file.*PEM"):
        ProbeOptions(client_cert_file=empty).tls_context()


def test_an_own_authority_is_trusted() -> None:
    """`ca_file` makes a context that verifies."""
    bundle = ssl.get_default_verify_paths().cafile
    if bundle is None:
        pytest.skip("no certificate bundle on this machine")
    context = ProbeOptions(ca_file=Path(bundle)).tls_context()

    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
