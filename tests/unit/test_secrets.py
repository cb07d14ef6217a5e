"""Secrets of the settings appear in no output, state file or command line."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from command_line import CommandLine

from include.ground.errors import Terminal, mask_secrets, mask_value
from include.ground.settings import Settings, load_settings
from include.run.child_process import launch
from include.run.runner import environment_settings, settings_fingerprints
from include.run.start_stop import settings_difference
from include.state.json_file import JsonFile, StateFileUnreadable
from include.state.run_files import RunFile, write_run_file
from spark_jobs.backends.spark_session import private_options

CANARY = "canary7731"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="{CANARY}";'
SECRETS = {
    "HEADRACE_KAFKA_OPTIONS": json.dumps(
        {"kafka.sasl.jaas.config": JAAS, "kafka.ssl.key.password": CANARY, "kafka.ssl.keystore.key": CANARY}
    ),
    "HEADRACE_SPARK_CONF": json.dumps({"spark.ssl.keyStorePassword": CANARY}),
    "HEADRACE_LEDGER_URL": f"postgresql://host/db?user=me&password={CANARY}",
    "HEADRACE_AIRFLOW_DATABASE": f"postgresql+psycopg://me:{CANARY}@host/db",
    "HEADRACE_DRIVER_JVM": f"-Djavax.net.ssl.trustStorePassword={CANARY}",
}
INVALID = {
    "HEADRACE_KAFKA_OPTIONS": '{"kafka.ssl.key.password": "canary7731"',
    "HEADRACE_SPARK_CONF": '["canary7731"]',
    "HEADRACE_DRIVER_MEMORY": "password=canary7731",
}


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    load_settings.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        JAAS,
        json.dumps({"kafka.sasl.jaas.config": JAAS}),
        json.dumps({"kafka.sasl.jaas.config": JAAS})[:-1],
        json.dumps({"a": {"token": [CANARY]}}),
        f"jdbc:postgresql://host/db?password={CANARY}&ssl=true",
        f"https://me:{CANARY}@host/",
        f"https://me:a@{CANARY}:b/c@host/",
        f"Password = '{CANARY}'",
    ],
)
def test_secret_is_masked(text: str) -> None:
    assert CANARY not in mask_secrets(text)
    assert "***" in mask_secrets(text)


SCHEMES = ("http", "https", "postgresql", "postgresql+psycopg", "jdbc:postgresql", "mysql", "s3", "amqp", "mongodb+srv")
USERS = ("", "me:{}@", "{}@", "{}:@", "{}:x-oauth-basic@", "me:a@{}:b/c@", "me:%40{}%2F@", "me@corp:{}@", ":{}@")
PARAMETERS = (
    *("password", "passwd", "pwd", "token", "access_token", "secret", "key", "apikey", "api_key", "sslpassword", "sig"),
    *(
        "X-Amz-Signature",
        "X-Amz-Security-Token",
        "auth",
        "client_secret",
        "passphrase",
        "Password",
        "SECRET_KEY_secret",
    ),
)
KEYWORDS = (
    "host=h dbname=d user=u password={}",
    "host=h password = {} user=u",
    "password='{}' host=h",
    "password='a {} b\\' {}' host=h",
    "password=a\\ {} host=h",
    "password=a,b;{} host=h",
    "password=a){} host=h",
    "sslpassword={} sslkey=/a/b",
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="{}";',
    "sasl.jaas.config=org.x.Module required username='u' password='{} x';",
    'OAuthBearerLoginModule required clientId="a" clientSecret="{}" scope="s";',
    "-Djavax.net.ssl.trustStorePassword={}",
    "Authorization: Bearer {}{}",
    "Authorization: Basic {}{}",
    '{{"authorization": "Bearer {}{}"}}',
    "jdbc:sqlserver://h;user=u;password={}",
    '"password": "unfinished {}',
    "spark.authenticate.secret={}",
    "{{'kafka.sasl.password': '{}', 'n': 1}}",
)


def urls_with_a_secret() -> list[str]:
    """URLs of every scheme with the secret in every place."""
    users = [f"{scheme}://{user}host:1/db" for scheme in SCHEMES for user in USERS if user]
    places = [
        f"{scheme}://{user}host/db?a=b&{name}={{}}&c=d" for scheme in SCHEMES for user in USERS for name in PARAMETERS
    ]
    return [text.replace("{}", CANARY) for text in (*users, *places)]


@pytest.mark.parametrize("around", ["{}", "ledger {} is unavailable (why)", '["{}"]', "'{}': no", "a\n{}\nb"])
def test_no_form_of_a_secret_is_shown(around: str) -> None:
    texts = [*urls_with_a_secret(), *(text.format(CANARY, CANARY) for text in KEYWORDS)]
    assert len(texts) > 1000
    for text in texts:
        assert CANARY not in mask_secrets(around.replace("{}", text)), text
        assert CANARY not in str(mask_value({"a": [around.replace("{}", text)]})), text


@pytest.mark.parametrize("around", ["{}", "ledger {} is unavailable (why)", "{}: refused"])
def test_no_error_shows_the_secret_of_an_address(around: str) -> None:
    for text in urls_with_a_secret():
        error = Terminal(around.replace("{}", text), f"headrace x --url {text}")
        assert CANARY not in f"{error} {error.what} {error.remedy} {error!r}", text


@pytest.mark.parametrize("name", ["LEDGER_URL", "LEASE_URL", "AIRFLOW_DATABASE"])
@pytest.mark.parametrize("place", ["me:{}@127.0.0.1:1/db", "{}@127.0.0.1:1/db", "127.0.0.1:1/db?user=u&password={}"])
def test_commands_print_no_secret_of_a_database(
    name: str, place: str, tmp_path: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.observe.progress.KAFKA_SECONDS", 0.1)
    known = {"HEADRACE_STATE": str(tmp_path), f"HEADRACE_{name}": f"postgresql+psycopg://{place.format(CANARY)}"}
    known |= {"HEADRACE_RUNNER": "service", "HEADRACE_KAFKA_BOOTSTRAP": "127.0.0.1:1"} if name == "LEASE_URL" else {}
    for command in (["settings"], ["status"], ["status", "--json"], ["ledger", "rebuild"]):
        ended = command_line(*command, **known)
        assert ended.output + ended.errors != "", command
        assert CANARY not in ended.output + ended.errors, command


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/a/path",
        "sqlite:////a/path",
        '{"kafka.ssl.truststore.location": "/a"}',
        "3g",
        "HEADRACE_DATABASE_PASSWORD_FILE: /run/secrets/p",
        "http://host:80/a?b=c",
        "a@b.example",
        "kafka:9092",
        "password file /a/b: nobody can log in",
        "spark://host:7077",
        "key: value",
    ],
)
def test_text_without_a_secret_is_unchanged(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize("arguments", [("settings",), ("settings", "--json")])
@pytest.mark.parametrize("wrong", [{}, *({name: value} for name, value in INVALID.items())])
def test_settings_command_prints_no_secret(
    arguments: tuple[str, ...], wrong: dict[str, str], tmp_path: Path, command_line: CommandLine
) -> None:
    ended = command_line(*arguments, **{**SECRETS, "HEADRACE_STATE": str(tmp_path), **wrong})
    assert ended.code == (2 if wrong else 0)
    assert CANARY not in ended.output + ended.errors
    assert "***" in ended.output


def test_unreadable_state_file_prints_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for content in ({"password": [CANARY]}, {"url": [f"https://me:{CANARY}@host/"]}):
        path.write_text(json.dumps(content))
        with pytest.raises(StateFileUnreadable) as raised:
            JsonFile(path, dict[str, str]).read()
        assert CANARY not in str(raised.value)


@pytest.mark.usefixtures("environ")
def test_run_file_holds_no_secret_and_a_changed_secret_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"settings": environment_settings(), "fingerprints": settings_fingerprints(settings)}
    write_run_file(settings, RunFile("runner", os.getpid(), 1.0, [], extra))
    files = [path for path in settings.state.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if CANARY in path.read_text()]
    assert settings_difference(settings) == ""
    monkeypatch.setenv("HEADRACE_AIRFLOW_DATABASE", "postgresql+psycopg://me:fresh99@host/db")
    assert "HEADRACE_AIRFLOW_DATABASE" in settings_difference(settings)
    assert "fresh99" not in settings_difference(settings)


def test_launched_process_creates_files_for_its_user_only(settings: Settings) -> None:
    target = settings.state / "made"
    launch(settings, "maker", ["mkdir", str(target)], settings.state.parent, os.environ).wait(10)
    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_secret_spark_options_are_read_from_a_private_file(settings: Settings) -> None:
    given = {"spark.ssl.keyStorePassword": f"a=b:c\\{CANARY}\n é", "spark.ui.enabled": "false"}
    with private_options(settings, given) as public:
        (file,) = (settings.state / "spark").glob("*.properties")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert public == {"spark.ui.enabled": "false"}
        assert os.environ["PYSPARK_SUBMIT_ARGS"].startswith("--properties-file ")
        assert file.read_text("ascii") == f"spark.ssl.keyStorePassword=a\\=b\\:c\\\\{CANARY}\\n\\ \\u00e9\n"
    assert not file.exists()
    assert "PYSPARK_SUBMIT_ARGS" not in os.environ


def test_long_text_with_many_addresses_is_masked_in_time() -> None:
    text = "a://" * 50_000
    began = time.process_time()
    assert mask_secrets(text) == text
    assert mask_secrets(f"{text}bob:{CANARY}@host") == "a://***@host"
    assert time.process_time() - began < 2
