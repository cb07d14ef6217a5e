"""Settings: environment variables `HEADRACE_*`, validated, each with its meaning and unit."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import SettingsConfigDict, SettingsError

from include.ground.errors import MASK, Terminal, mask_secrets, mask_value
from include.ground.settings_profiles import (
    CLUSTER_SIZES,
    DECIDED,
    DEFAULT_PROFILE,
    RETIRED,
    Profile,
    ProfiledSettings,
    breaks_guarantee,
    profile_values,
    reason_refused,
)

CLONE = Path(__file__).resolve().parents[2]
PREFIX = "HEADRACE_"
OUTSIDE_SETTINGS = {
    "HEADRACE_FAILPOINT": "For tests: kills or stops a driver at a step (spark_jobs/tables/failpoints.py), "
    "kill:3.bronze-committed or stop:6.published:12 from batch 12 on. Read by drivers and jobs themselves."
}
WEB_ADDRESS = r"^(https?://[\w.-]+(:\d{1,5})?)?$"
# Spark refuses to start below 450 MiB.
LEAST_HEAP = "512m"
MOST_BATCH_BYTES, HEAP_FOR_BATCH = 256 << 20, 12
"""A full batch of large records takes about a twelfth of the driver's heap at most."""
LAST_PORT = 65_535
# Spark's other masters are local ones: threads of a driver are HEADRACE_DRIVER_CORES.
HOST_AND_PORT = r"[\w.-]+:\d{1,5}"
SPARK_MASTER = re.compile(
    rf"spark://{HOST_AND_PORT}(,{HOST_AND_PORT})*|yarn|k8s://(https?://)?[\w.-]+(:\d{{1,5}})?(/\S*)?"
)


class InvalidSetting(Terminal):
    """A setting is unknown, has an invalid value, or would break a guarantee. `key` is its variable."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"setting {key}: {why}; nothing was started", "headrace settings   (lists every setting)")
        self.key = key


class Settings(ProfiledSettings):
    """All settings. Paths may contain spaces; memory is in JVM notation (512m, 3g)."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    profile: Profile = Field(
        DEFAULT_PROFILE,
        description="what to optimise: latency, CPU per record, or memory; sets the knobs of headrace settings "
        "--profiles, unless they are given",
    )
    state: Path = Field(CLONE / ".headrace", description="folder of broker, tables, checkpoints and ledger")
    datasets: Path = Field(CLONE / "include" / "datasets", description="folder of the dataset folders")
    files: Path = Field(CLONE / "files", description="folder of files that HTTP may load; the command loads any")
    jars: Path = Field(CLONE / ".jars", description="folder of the verified jars: spark/ and broker/")
    runner: Literal["own", "service"] = Field("own", description="who starts the runner: headrace up, or a service")
    ledger_url: str = Field("", description="SQLAlchemy URL of the ledger; empty: SQLite in the state folder")
    lease_url: str = Field(
        "",
        pattern=r"^(postgresql(\+psycopg)?://\S+)?$",
        description="PostgreSQL that keeps the leases of several hosts; empty: OS locks, for one host",
    )
    lease_seconds: float = Field(
        30.0,
        ge=5,
        le=600,
        description="seconds for which a lease in PostgreSQL lasts without a renewal; then another host takes over",
    )
    lease_domain: str = Field(
        "",
        pattern=r"^([a-z0-9][a-z0-9_-]*)?$",
        description="name of hosts with state folders of their own that share leases: a stream of a host that is gone "
        "goes on elsewhere, from its tables in a store",
    )
    database_password_file: Path | None = Field(
        None, description="file whose first line is the password of the databases whose URLs have none"
    )
    warehouse: str = Field(
        "",
        pattern=r"^(s3a?://[a-z0-9][a-z0-9.-]+(/[\w=.-]+)*/?)?$",
        description="object store that has each publication before readers see it, s3://bucket/prefix, or the tables "
        "themselves, s3a://bucket/prefix; empty: the state folder alone",
    )
    warehouse_endpoint: str = Field("", pattern=WEB_ADDRESS, description="address of that store; empty: Amazon's")
    warehouse_key_id: str = Field("", description="access key id of that store; empty: AWS_… variables, or a role")
    warehouse_secret_file: Path | None = Field(None, description="file whose first line is the secret of that key")
    airflow_port: int = Field(
        0, ge=0, le=65535, description="port of Airflow's web server; 0: a free port, reused by later starts"
    )
    airflow_database: str = Field(
        "", description="SQLAlchemy URL of Airflow's database, postgresql+psycopg://…; empty: SQLite"
    )
    airflow_url: str = Field(
        "",
        pattern=WEB_ADDRESS,
        description="where other containers reach Airflow's web server; empty: all parts are on this machine",
    )
    console: str = Field(
        "on",
        pattern=r"^(on|off|\d{1,5}|https?://[\w.-]+(:\d{1,5})?)$",
        description="whether headrace up starts the console: on (a free port that later starts reuse), a port, off, or "
        "the address at which browsers reach a console that is a service of its own",
    )
    metrics: str = Field(
        "off",
        pattern=r"^(on|off|\d{1,5})$",
        description="whether headrace up starts the endpoint for Prometheus: on (a free port that later starts reuse), "
        "a port, or off",
    )
    openlineage_url: str = Field(
        "",
        pattern=r"^(https?://[^\s/]+\S*|file://\S+)?$",
        description="receiver that OpenLineage events are posted to, or file:///path for one a line; empty: none",
    )
    openlineage_key_file: Path | None = Field(None, description="file whose first line is the receiver's API key")
    openlineage_namespace: str = Field(
        "headrace", pattern=r"^\S+$", description="namespace of the jobs in OpenLineage events"
    )
    openlineage_seconds: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="interval between two runs that a stream reports as OpenLineage events, seconds",
    )
    console_passwords: Path | None = Field(
        None, description="file of the console's users (headrace console --add-user); empty: the console is read-only"
    )
    api_url: str = Field(
        "", pattern=WEB_ADDRESS, description="where Airflow reaches the console's API; empty: the runner's console"
    )
    api_token_file: Path | None = Field(None, description="file whose first line lets an Airflow elsewhere use the API")
    kafka_port: int = Field(0, ge=0, le=65535, description="port of the broker; 0: a free port, reused by later starts")
    kafka_bootstrap: str = Field(
        "",
        pattern=r"^([\w.-]+:\d{1,5}(,[\w.-]+:\d{1,5})*)?$",
        description="a Kafka of your own, host:port[,host:port]; empty: the broker that Headrace runs",
    )
    kafka_security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="security protocol of that Kafka"
    )
    kafka_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = Field(
        "SCRAM-SHA-512", description="SASL mechanism of that Kafka"
    )
    kafka_user: str = Field("", description="user of that Kafka, for SASL")
    kafka_password_file: Path | None = Field(None, description="file whose first line is that user's password")
    kafka_ca_file: Path | None = Field(None, description="CA certificates (PEM) for TLS to that Kafka")
    kafka_create_topics: bool = Field(True, description="whether missing topics are created")
    schema_registry_url: str = Field(
        "",
        pattern=r"^(https?://[\w.-]+(:\d{1,5})?(/[\w./-]*)?)?$",
        description="schema registry with Confluent's REST API, for datasets in Avro; empty: there is none",
    )
    schema_registry_user: str = Field("", description="user of that registry; empty: no log-in")
    schema_registry_password_file: Path | None = Field(
        None, description="file whose first line is that user's password"
    )
    schema_registry_ca_file: Path | None = Field(None, description="CA certificates (PEM) for TLS to that registry")
    shared_driver: Literal["off", "auto"] = Field("off", description="auto: datasets that name no driver share one")
    driver_memory: str = Field("3g", pattern=r"^\d+[mg]$", description="driver JVM heap, each dataset")
    driver_jvm: str = Field("", description="additional JVM flags of a driver")
    driver_cores: int = Field(2, ge=1, le=64, description="threads of a driver that has no cluster: local[N]")
    spark_master: str = Field(
        "",
        description="master of a Spark cluster, spark://host:port; empty: drivers compute by themselves, local[N]",
    )
    backend: Literal["auto", "local", "spark"] = Field(
        "auto",
        description="what computes rows: local, the driver's process; spark, executors with delta-spark; auto, spark "
        "where there is a Spark master",
    )
    durability: Literal["process", "power"] = Field(
        "process", description="what a committed batch survives: crashes of processes, or also a power cut (fsync)"
    )
    batch_records: int = Field(250_000, ge=1, description="maximum Kafka offsets in an ingest batch")
    refine_records: int = Field(
        500_000,
        ge=1,
        description="maximum records in a refine run, one above 1 KB on disk counts as several; a batch is never split",
    )
    compaction_files: int = Field(
        8, ge=0, le=500, description="similar small files that the owner compacts by itself; 0: only headrace maintain"
    )
    trigger_seconds: float = Field(
        0.1,
        ge=0,
        le=3600,
        description="minimum interval between ingest batches that are not full, seconds; refine paces them",
    )
    stall_seconds: float = Field(
        1800.0,
        ge=1,
        le=86_400,
        description="seconds without progress after which a driver is killed and restarted",
    )
    plan_timeout: float = Field(
        43_200.0, gt=0, description="seconds after which a job of a plan, a maintenance or a repair is ended"
    )
    spark_conf: dict[str, str] = Field(
        default_factory=dict, description="JSON object of Spark settings, from a list of safe ones"
    )
    kafka_options: dict[str, str] = Field(
        default_factory=dict, description="JSON object of Kafka source options, from a list of safe ones"
    )

    @model_validator(mode="after")
    def _require_whole_logins(self) -> Self:
        if self.kafka_security.startswith("SASL") and not (self.kafka_user and self.kafka_password_file):
            why = f"{self.kafka_security} needs HEADRACE_KAFKA_USER and _PASSWORD_FILE"
            raise InvalidSetting("HEADRACE_KAFKA_SECURITY", why)
        if self.kafka_security != "PLAINTEXT" and not self.kafka_bootstrap:
            raise InvalidSetting("HEADRACE_KAFKA_SECURITY", "needs HEADRACE_KAFKA_BOOTSTRAP: it is of your own Kafka")
        if bool(self.warehouse_key_id) != bool(self.warehouse_secret_file):
            raise InvalidSetting("HEADRACE_WAREHOUSE_KEY_ID", "and HEADRACE_WAREHOUSE_SECRET_FILE need each other")
        return self

    @model_validator(mode="after")
    def _require_interval_below_stall(self) -> Self:
        # What nobody has set must not refuse a command; a driver that waits for its default reports in time.
        if "trigger_seconds" in self.model_fields_set and self.trigger_seconds >= self.stall_seconds:
            why = f"{self.trigger_seconds:g} is not below HEADRACE_STALL_SECONDS: a driver that waits would be killed"
            raise InvalidSetting("HEADRACE_TRIGGER_SECONDS", why)
        return self

    @property
    def console_url(self) -> str:
        """The address of a console that is a service of its own, "" without one."""
        return self.console if "://" in self.console else ""

    @property
    def starts_console(self) -> bool:
        return self.console != "off" and not self.console_url

    @property
    def batch_bytes(self) -> int:
        """The approximate maximum bytes of records in an ingest batch: a small heap holds fewer at a time."""
        return min(MOST_BATCH_BYTES, heap_bytes(self.driver_memory) // HEAP_FOR_BATCH)

    @property
    def broker_memory(self) -> str:
        """The heap of the broker that Headrace runs; resident 273 MB, with the smaller one 238 MB."""
        return "256m" if self.profile == "small" else "512m"

    @property
    def spark_cores(self) -> int:
        """The cores of the cluster that a driver or a plan's job takes at most."""
        return int(self.spark_conf.get("spark.cores.max", 2))

    @property
    def executor_cores(self) -> int:
        return int(self.spark_conf.get("spark.executor.cores", 1))

    @property
    def executor_memory(self) -> str:
        return self.spark_conf.get("spark.executor.memory", "1g")

    @property
    def stores_tables(self) -> bool:
        return self.warehouse.startswith("s3a:")

    @property
    def is_power_safe(self) -> bool:
        """Whether files are forced to disk before a batch counts as committed."""
        return self.durability == "power"

    @field_validator("state", "datasets", "jars", mode="before")
    @classmethod
    def _refuse_empty(cls, value: object) -> object:
        if not str(value).strip():
            raise ValueError("is empty; name a folder, or unset it for the default")
        return value

    @field_validator("state", "datasets", "jars")
    @classmethod
    def _absolute_path(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @property
    def computes_with_spark(self) -> bool:
        """Whether executors and delta-spark read and write rows, instead of the driver's process."""
        return self.backend == "spark" or (self.backend == "auto" and bool(self.spark_master))

    @field_validator("spark_master")
    @classmethod
    def _require_cluster_master(cls, value: str) -> str:
        if value and not SPARK_MASTER.fullmatch(value):
            forms = "spark://host:port[,host:port], yarn or k8s://…; empty is local[HEADRACE_DRIVER_CORES]"
            raise ValueError(f"must be {forms}")
        return value

    @model_validator(mode="after")
    def _require_possible_cluster(self) -> Self:
        if self.spark_master and self.backend == "local":
            why = "local computes in the driver's process, HEADRACE_SPARK_MASTER names a cluster: unset one of them"
            raise InvalidSetting("HEADRACE_BACKEND", why)
        if self.stores_tables and not self.computes_with_spark:
            raise InvalidSetting("HEADRACE_WAREHOUSE", "s3a:// has the tables themselves: needs HEADRACE_BACKEND=spark")
        if self.is_power_safe and (self.spark_master or self.backend == "spark"):
            why = "power is not kept with HEADRACE_SPARK_MASTER or HEADRACE_BACKEND=spark: others write the files"
            raise InvalidSetting("HEADRACE_DURABILITY", why)
        if self.lease_url and not (self.kafka_bootstrap and self.runner == "service"):
            why = "needs HEADRACE_RUNNER=service and HEADRACE_KAFKA_BOOTSTRAP: what `up` starts ends with its host"
            raise InvalidSetting("HEADRACE_LEASE_URL", why)
        if self.lease_domain and not (self.lease_url and self.stores_tables):
            why = "needs HEADRACE_LEASE_URL and HEADRACE_WAREHOUSE=s3a://…: nothing else is common to these hosts"
            raise InvalidSetting("HEADRACE_LEASE_DOMAIN", why)
        if self.spark_master and self.executor_cores > self.spark_cores:
            cores = f"spark.executor.cores {self.executor_cores} is more than spark.cores.max {self.spark_cores}"
            raise InvalidSetting("HEADRACE_SPARK_CONF", f"{cores}: no executor would start")
        return self

    @field_validator("console", "metrics")
    @classmethod
    def _require_port(cls, value: str) -> str:
        if value.isdecimal() and int(value) > LAST_PORT:
            raise ValueError(f"is not a port, which is at most {LAST_PORT}")
        return value

    @field_validator("driver_memory")
    @classmethod
    def _require_least_heap(cls, value: str) -> str:
        if heap_bytes(value) < heap_bytes(LEAST_HEAP):
            raise ValueError(f"must be at least {LEAST_HEAP}: the JVM does not start with less")
        return value

    @field_validator("spark_conf", "kafka_options")
    @classmethod
    def _refuse_unsafe_options(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        field = info.field_name or ""
        for key, given in value.items():
            reject_unsafe(key, given)
            if key.lower() not in DECIDED and (why := reason_refused(field, key)):
                raise InvalidSetting(f"{PREFIX}{field.upper()}", f"option {key} is refused: {why}")
            if not re.fullmatch(CLUSTER_SIZES.get(key, ".*"), given, re.DOTALL):
                why = f"option {key} must have the form {CLUSTER_SIZES[key]}"
                raise InvalidSetting(f"{PREFIX}{field.upper()}", why)
        memory = value.get("spark.executor.memory", LEAST_HEAP)
        if heap_bytes(memory) < heap_bytes(LEAST_HEAP):
            raise ValueError(f"spark.executor.memory must be at least {LEAST_HEAP}: the JVM does not start with less")
        return value


def heap_bytes(text: str) -> int:
    """Return the bytes of a JVM heap size such as 512m or 3g."""
    return int(text[:-1]) << {"m": 20, "g": 30}[text[-1]]


def reject_unsafe(key: str, value: str) -> None:
    """Raise InvalidSetting if `key=value` would break a guarantee (data loss, duplicates, another time zone)."""
    if breaks_guarantee(key, value):
        why = f"{mask_secrets(value)!r} would break a guarantee (records lost, duplicated or misread)"
        raise InvalidSetting(key, why)


def reject_unknown(environ: Mapping[str, str]) -> None:
    """Raise InvalidSetting for the first `HEADRACE_*` variable that is not a setting."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | OUTSIDE_SETTINGS.keys()
    for key in environ:
        if key.startswith(PREFIX) and key not in known:
            instead = RETIRED.get(key.removeprefix(PREFIX))
            raise InvalidSetting(key, f"does not exist any more: {instead}; unset it" if instead else "does not exist")


def require_folders(settings: Settings) -> None:
    """Raise InvalidSetting unless `datasets` exists and `state` exists or can be created. Creates neither."""
    if not settings.datasets.is_dir():
        raise InvalidSetting("HEADRACE_DATASETS", f"{settings.datasets} does not exist or is not a folder")
    existing = next(path for path in (settings.state, *settings.state.parents) if path.exists())
    if not existing.is_dir():
        raise InvalidSetting("HEADRACE_STATE", f"{existing} is not a folder")
    if existing != settings.state:
        try:
            # Permissions alone do not show it: nobody can create a folder in /proc.
            os.rmdir(tempfile.mkdtemp(dir=existing))
        except OSError as error:
            why = f"{settings.state} cannot be created in {existing}: {error.strerror}"
            raise InvalidSetting("HEADRACE_STATE", why) from error


@lru_cache(maxsize=1)
def load_settings() -> Settings:
    """Return the settings of this process, read from the environment once. Raises InvalidSetting."""
    reject_unknown(os.environ)
    try:
        settings = Settings()
    except ValidationError as error:
        first = error.errors()[0]
        key = f"{PREFIX}{'_'.join(str(part) for part in first['loc'][:1]).upper()}"
        value = MASK if first["loc"][1:] else repr(mask_value(first["input"]))
        if isinstance(first["input"], dict | list):
            value = "not shown, it may hold secrets"
        why = first["msg"].removeprefix("Value error, ")
        if first["type"] == "string_pattern_mismatch":
            meaning = Settings.model_fields[str(first["loc"][0])].description
            why = f"must have the form {first['ctx']['pattern'].strip('^$')}: {meaning}"
        raise InvalidSetting(key, f"{why} (value: {value})") from None
    except SettingsError as error:
        # For a value that is not JSON, the message contains the field's name and nothing else of use.
        named = re.search(r'field "(\w+)"', str(error))
        key = f"{PREFIX}{named[1].upper()}" if named else str(error)
        raise InvalidSetting(key, "is not a JSON object (value: not shown, it may hold secrets)") from None
    require_folders(settings)
    return settings


BY_ENVIRONMENT, BY_DEFAULT = "environment", "default"


@dataclass(frozen=True)
class SettingInfo:
    """A setting for display: variable, value and default as text, where the value comes from, its meaning."""

    name: str
    value: str
    default: str
    origin: str
    meaning: str

    @property
    def is_default(self) -> bool:
        return self.origin == BY_DEFAULT


def list_settings(environ: Mapping[str, str] = os.environ) -> list[SettingInfo]:
    """Return every setting in the order of declaration, also invalid values. Secrets are masked."""
    infos, profile = [], environ.get(f"{PREFIX}PROFILE", DEFAULT_PROFILE)
    chosen = profile_values(profile)
    for field, declared in Settings.model_fields.items():
        name = f"{PREFIX}{field.upper()}"
        default = _text(declared.get_default(call_default_factory=True))
        if name in environ:
            value, origin = environ[name], BY_ENVIRONMENT
        elif field in chosen:
            value, origin = _text(chosen[field]), f"profile {profile}"
        else:
            value, origin = default, BY_DEFAULT
        infos.append(SettingInfo(name, _shown(field, value), default, origin, declared.description or ""))
    outside = (
        SettingInfo(name, environ.get(name, ""), "", BY_ENVIRONMENT if name in environ else BY_DEFAULT, why)
        for name, why in OUTSIDE_SETTINGS.items()
    )
    return [*infos, *outside]


def _shown(field: str, text: str) -> str:
    """Return the value with secrets masked; an object that is not JSON as a whole, because its keys are not known."""
    if field not in ("spark_conf", "kafka_options"):
        return mask_secrets(text)
    try:
        return mask_secrets(text) if isinstance(json.loads(text), dict) else MASK
    except ValueError:
        return MASK


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


class PasswordUnreadable(Terminal):
    """A file with a password cannot be read; `path` names it, `setting` is the variable that names the file."""

    def __init__(self, setting: str, path: Path, why: str) -> None:
        super().__init__(
            f"{setting}: {path} cannot be read: {why}; nothing was started",
            "write the password into that file, readable for this user alone (chmod 600)",
        )
        self.setting, self.path = setting, path


def read_password(setting: str, path: Path) -> str:
    """Return the first line of the file that a setting names. Raises PasswordUnreadable."""
    try:
        return path.read_text("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise PasswordUnreadable(setting, path, str(error)) from error


def with_password(url: str, setting: str, path: Path | None) -> str:
    """Return the URL of a database with the password of a file; unchanged without a file, and when it names one."""
    parts = urlsplit(url)
    if path is None or parts.username is None or parts.password is not None:
        return url
    user, _, server = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(read_password(setting, path), safe='')}@{server}"))
