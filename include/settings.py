"""Settings: environment variables `HEADRACE_*`, strict, typed, each with its meaning and unit."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from include.errors import Terminal

CLONE = Path(__file__).resolve().parent.parent
PREFIX = "HEADRACE_"
# Named by tests to crash or pause a driver at one step; read where it acts, see spark_jobs/storage/failpoints.py.
OUTSIDE_SETTINGS = {"HEADRACE_FAILPOINT"}
# Each would let records be lost, doubled or read wrongly without an error (FAULTS 43 in the design notes).
UNSAFE_VALUES = {
    "failondataloss": "false",
    "kafka.isolation.level": "read_uncommitted",
    "startingoffsets": "latest",
    "spark.sql.session.timezone": None,
    "spark.sql.ansi.enabled": "false",
    "spark.sql.streaming.checkpoint.verifymetadataexists.enabled": "false",
    "spark.sql.casesensitive": "false",
}


class InvalidSetting(Terminal):
    """A setting is unknown, of the wrong type, or would endanger a guarantee; `key` names it."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"setting {key}: {why}; nothing was started", "headrace settings   (lists every setting)")
        self.key = key


class Settings(BaseSettings):
    """Every knob of Headrace. Paths may contain spaces; memory is in JVM notation."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    state: Path = Field(CLONE / ".headrace", description="folder that holds broker, tables, checkpoints and ledger")
    datasets: Path = Field(CLONE / "include" / "datasets", description="folder of the dataset folders")
    jars: Path = Field(CLONE / ".jars", description="folder of the verified jars: spark/ and broker/")
    ledger_url: str = Field("", description="SQLAlchemy URL of the ledger; empty: SQLite in the state folder")
    airflow_port: int = Field(
        0, ge=0, le=65535, description="port of Airflow's page; 0: a free one, kept between starts"
    )
    airflow_database: str = Field(
        "", description="SQLAlchemy URL of Airflow's database, postgresql+psycopg://…; empty: SQLite"
    )
    kafka_port: int = Field(0, ge=0, le=65535, description="broker port; 0: a free one, kept between starts")
    broker_memory: str = Field("512m", pattern=r"^\d+[mg]$", description="broker JVM heap")
    driver_memory: str = Field("3g", pattern=r"^\d+[mg]$", description="driver JVM heap, each dataset")
    driver_jvm: str = Field("", description="more JVM flags for a driver, as on java's command line")
    driver_cores: int = Field(2, ge=1, le=64, description="threads of a driver: local[N]")
    batch_records: int = Field(250_000, ge=1, description="most Kafka offsets in one ingest batch")
    refine_records: int = Field(500_000, ge=1, description="most records in one refine run, unless one batch has more")
    trigger_seconds: float = Field(0.5, ge=0, le=3600, description="ingest looks for records this often, seconds")
    restart_seconds: float = Field(
        1.0, gt=0, le=3600, description="first pause before a process is started again, seconds"
    )
    restart_tries: int = Field(5, ge=1, description="a process that ended so often in a row is given up")
    spark_conf: dict[str, str] = Field(default_factory=dict, description="JSON object of Spark settings")
    kafka_options: dict[str, str] = Field(default_factory=dict, description="JSON object of Kafka source options")

    @field_validator("state", "datasets", "jars")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @field_validator("spark_conf", "kafka_options")
    @classmethod
    def _harmless(cls, value: dict[str, str]) -> dict[str, str]:
        for key, given in value.items():
            reject_unsafe(key, given)
        return value


def reject_unsafe(key: str, value: str) -> None:
    """Raise SettingsRefused when `key=value` would endanger a guarantee (loss, duplicates, another time zone)."""
    name = key.lower()
    if name not in UNSAFE_VALUES:
        return
    bad = UNSAFE_VALUES[name]
    if (bad is None and value.upper() != "UTC") or value.lower() == bad:
        raise InvalidSetting(key, f"{value!r} endangers the guarantees (records lost, doubled or misread)")


def reject_unknown(environ: Mapping[str, str]) -> None:
    """Raise SettingsRefused for the first `HEADRACE_*` variable that no setting has."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | OUTSIDE_SETTINGS
    for key in environ:
        if key.startswith(PREFIX) and key not in known:
            raise InvalidSetting(key, "is no setting of Headrace")


@lru_cache(maxsize=1)
def load_settings() -> Settings:
    """Return the settings of this process, read once from the environment; SettingsRefused names what is wrong."""
    reject_unknown(os.environ)
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        key = f"{PREFIX}{'_'.join(str(part) for part in first['loc'][:1]).upper()}"
        raise InvalidSetting(key, f"{first['msg']} (given: {first['input']!r})") from error
    except SettingsError as error:
        # The value of a JSON setting is no JSON; the message has the field's name and nothing else to go by.
        named = re.search(r'field "(\w+)"', str(error))
        key = f"{PREFIX}{named[1].upper()}" if named else str(error)
        raise InvalidSetting(key, f"is no JSON object (given: {os.environ.get(key, '')!r})") from error


@dataclass(frozen=True)
class SettingInfo:
    """A setting for people: its variable, value and default as text, whether the environment gives it, its meaning."""

    name: str
    value: str
    default: str
    given: bool
    meaning: str


def list_settings(environ: Mapping[str, str] = os.environ) -> list[SettingInfo]:
    """Return every setting, in the order of declaration; also values that are refused. Passwords in URLs are hidden."""
    knobs = []
    for field, declared in Settings.model_fields.items():
        name = f"{PREFIX}{field.upper()}"
        default = _text(declared.get_default(call_default_factory=True))
        value = without_password(environ.get(name, default))
        knobs.append(SettingInfo(name, value, default, name in environ, declared.description or ""))
    return knobs


def without_password(text: str) -> str:
    """Return a URL with its password replaced by ***; any other text as it is."""
    return re.sub(r"(\w://[^/:@]*):.*@", r"\1:***@", text)


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
