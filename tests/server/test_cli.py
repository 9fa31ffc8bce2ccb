"""The `tidegate` command where something is wrong: one line that says what, and an exit code."""

from __future__ import annotations

import pytest

from tidegate.cli import main

NOBODY = "http://127.0.0.1:9"


def test_the_demo_against_servers_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """The address, and no traceback."""
    assert main(["demo", "--requests", "1", "--urls", NOBODY, NOBODY]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tidegate: {NOBODY}")
    assert line.endswith("Is the server up?")


def test_a_file_of_certificates_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A configuration that only shows when the probe is made is a wrong configuration all the same."""
    monkeypatch.setenv("TIDEGATE_PROBE__URLS", "https://127.0.0.1/metrics")
    monkeypatch.setenv("TIDEGATE_PROBE__CA_FILE", "/no/such/file")
    assert main(["check"]) == 2
    assert capsys.readouterr().err.startswith("tidegate: probe.ca_file")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing that is asked in a bug report."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("tidegate ")


@pytest.mark.parametrize("arguments", [[], ["chek"], ["top"], ["demo", "--requests", "many"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: tidegate" in capsys.readouterr().err


def test_a_wrong_setting_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for an operator's typo."""
    monkeypatch.setenv("TIDEGATE_MODE", "enforced")
    assert main(["check"]) == 2
    assert capsys.readouterr().err.startswith("tidegate: mode is 'enforced'")
