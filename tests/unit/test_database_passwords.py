"""Passwords of databases come from a file, and appear in no setting and no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.ground.paths import ledger_url
from include.ground.settings import PasswordUnreadable, Settings, with_password
from include.run.airflow_process import airflow_environment, load_or_create_keys

URL = "postgresql+psycopg://headrace@postgres:5432/ledger"


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """A password with characters that a URL needs to escape."""
    path = tmp_path / "password"
    path.write_text("a/b@c:d%\nnot this line")
    return path


def test_password_of_the_file_is_put_into_the_url(settings: Settings, password: Path) -> None:
    given = settings.model_copy(update={"ledger_url": URL, "database_password_file": password})
    assert ledger_url(given) == "postgresql+psycopg://headrace:a%2Fb%40c%3Ad%25@postgres:5432/ledger"


@pytest.mark.parametrize("url", ["", "sqlite:///x.db", "postgresql+psycopg://u:own@h/d", "postgresql+psycopg://h/d"])
def test_url_that_needs_none_is_unchanged(url: str, password: Path) -> None:
    assert with_password(url, "HEADRACE_DATABASE_PASSWORD_FILE", password) == url


def test_missing_file_names_its_setting(settings: Settings, tmp_path: Path) -> None:
    given = settings.model_copy(update={"ledger_url": URL, "database_password_file": tmp_path / "none"})
    with pytest.raises(PasswordUnreadable, match=r"HEADRACE_DATABASE_PASSWORD_FILE: .*none cannot be read"):
        ledger_url(given)


def test_parts_of_airflow_in_containers_find_each_other(settings: Settings, password: Path) -> None:
    given = settings.model_copy(
        update={
            "airflow_url": "http://airflow-apiserver:8080",
            "airflow_database": URL,
            "database_password_file": password,
        }
    )
    environment = airflow_environment(given, load_or_create_keys(given))
    assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://airflow-apiserver:8080/execution/"
    assert environment["AIRFLOW__API__HOST"] == "0.0.0.0"
    assert ":a%2Fb%40c%3Ad%25@postgres" in environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
