"""A part of Airflow as a service of its own: one command, the settings of all parts, keys from `init`."""

from __future__ import annotations

import pytest
from error_codes import raises

from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.run import airflow_process as airflow_service
from include.run.airflow_process import command_of, main, service_environment


@pytest.fixture(autouse=True)
def own_state(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service reads the test's settings."""
    monkeypatch.setattr(airflow_service, "load_settings", lambda: settings)


def test_part_starts_only_after_init_with_the_same_keys() -> None:
    with raises(Terminal, "not-initialised"):
        service_environment("scheduler")
    keys = service_environment("init")["AIRFLOW__CORE__FERNET_KEY"]
    assert service_environment("scheduler")["AIRFLOW__CORE__FERNET_KEY"] == keys
    assert service_environment("init")["AIRFLOW__CORE__FERNET_KEY"] == keys


def test_each_part_is_one_command_of_airflow() -> None:
    assert command_of("init")[1:] == ["-m", "airflow", "db", "migrate"]
    assert command_of("scheduler")[1:] == ["-m", "airflow", "scheduler", "--skip-serve-logs"]


@pytest.mark.parametrize("words", [[], ["webserver"], ["scheduler", "x"]])
def test_other_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "usage: airflow_process init|api-server" in capsys.readouterr().err
