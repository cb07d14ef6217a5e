"""`headrace produce`: option values and their errors."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from subprocess import run

import pytest
import typer
from typer.testing import CliRunner

from include.cli.main import app
from include.cli.terminal import share, utc_time
from include.ground import kafka
from include.producers.feed import InvalidEventRange

ANYWHERE = ("--bootstrap", "127.0.0.1:1")


def headrace(*words: str) -> tuple[int, str]:
    done = run(
        [sys.executable, "-m", "include.cli.main", *words], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(("text", "value"), [("0.005", 0.005), ("0.5%", 0.005), ("0", 0), ("100%", 1), (" 1 % ", 0.01)])
def test_shares_are_fractions_or_percentages(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["1.5", "-1%", "101%", "many", "", "nan"])
def test_invalid_share_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        share(text)


def test_times_are_utc() -> None:
    assert utc_time("2013-03-01") == datetime(2013, 3, 1, tzinfo=UTC)
    assert utc_time("2013-03-01T12:00") == utc_time("2013-03-01T12:00Z") == utc_time("2013-03-01T13:00+01:00")
    with pytest.raises(typer.BadParameter):
        utc_time("tomorrow")


def test_unknown_feed_names_the_known_ones() -> None:
    code, output = headrace("produce", "trains", *ANYWHERE)
    assert code == 2
    assert "'trains'" in output
    assert "flights, weather" in output


def test_wrong_option_is_named_with_its_value() -> None:
    code, output = headrace("produce", "weather", "--late", "150%", *ANYWHERE)
    assert code == 2
    assert "--late" in output
    assert "150%" in output


def test_empty_range_is_refused_before_the_broker_is_contacted() -> None:
    words = ["produce", "weather", "--from", "2013-05-01", "--to", "2013-04-30", *ANYWHERE]
    assert isinstance(CliRunner().invoke(app, words).exception, InvalidEventRange)


def test_unreachable_broker_is_an_error_without_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "TIMEOUT", 1.0)
    words = ["produce", "weather", "--quiet", "--manifest", str(tmp_path / "m"), *ANYWHERE]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, kafka.BrokerUnreachable)
    assert result.exception.bootstrap == "127.0.0.1:1"
    assert list(tmp_path.iterdir()) == []
