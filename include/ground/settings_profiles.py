"""Profiles and options: what `HEADRACE_PROFILE` sets, each value with its reason and what was measured; which options
of Spark and Kafka are accepted; and settings of earlier versions.

A profile changes no row of a table. A setting that the environment has wins over it. Measured with
`HEADRACE_PROFILE=P headrace bench run drain latency --dataset flights --runs 1 --warm-up 30000 --events 100000 --rate
2000 --seconds 40` on 2 cores, the machine idle otherwise; "fresh" is the default everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

Profile = Literal["fresh", "throughput", "small"]
DEFAULT_PROFILE: Profile = "fresh"
PURPOSES: Mapping[Profile, str] = {
    "fresh": "records are published as soon as possible",
    "throughput": "least CPU for each record; results are some seconds older",
    "small": "one stream on a machine with 4 GB and one free core",
}


@dataclass(frozen=True)
class Knob:
    """A setting that profiles other than `fresh` change: by profile the value, None for the default; why; the gain."""

    setting: str
    throughput: float | str | None
    small: float | str | None
    reason: str
    measured: str


KNOBS = (
    Knob(
        "trigger_seconds", 10.0, 2.0,
        "A run costs CPU whatever it holds: with fewer, larger runs a record costs less, and is published later. A "
        "full batch is followed at once, so a backlog does not wait.",
        "CPU s per million: fresh 635, small 228, throughput 100; p95 1.4, 5.8, 10.8 s",
    ),
    Knob(
        "batch_records", None, 50_000,
        "Records of a full batch: a small heap holds fewer at a time.",
        "by itself not measured",
    ),
    Knob(
        "refine_records", None, 100_000,
        "Records of a run that catches up: a run holds a part of them in memory.",
        "by itself not measured",
    ),
    Knob(
        "driver_memory", None, "1g",
        "Heap of a driver. A JVM takes what it may before it collects.",
        "resident driver JVM after a minute: 1.9 GB, small 1.1 GB; all processes of a stream 2.8 and 1.9 GB",
    ),
    Knob(
        "driver_cores", None, 1,
        "Threads of a driver: each task has buffers of its own, and a core is left for others.",
        "drain of 100,000 flights: 24,200/s, small 17,600/s",
    ),
)  # fmt: skip


def profile_values(profile: str) -> Mapping[str, float | str]:
    """Return the settings that a profile changes; of `fresh`, and of an unknown one, none."""
    if profile not in PURPOSES or profile == DEFAULT_PROFILE:
        return {}
    values = ((knob.setting, getattr(knob, profile)) for knob in KNOBS)
    return {setting: value for setting, value in values if value is not None}


class ProfileSource(PydanticBaseSettingsSource):
    """The values of the profile that arguments or environment choose; both win over it."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[object, str, bool]:
        """Return the profile's value of a setting; None: it has none."""
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, object]:
        """Return the profile's values; of an unknown profile none, since its validation names the known ones."""
        return dict(profile_values(str(self.current_state.get("profile", DEFAULT_PROFILE))))


class ProfiledSettings(BaseSettings):
    """Settings whose defaults a profile replaces."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return where values come from: the first source that has one wins."""
        return init_settings, env_settings, ProfileSource(settings_cls)


# Patterns of names in lower case. Everything else is refused: a new option of Spark may lose records without an error.
ALLOWED = {
    "kafka_options": (
        *("kafka.security.protocol", "kafka.sasl.*", "kafka.ssl.*"),
        *("kafka.fetch.*", "kafka.max.partition.fetch.bytes", "kafka.max.poll.records", "kafka.*.buffer.bytes"),
        *("kafka.*.timeout.ms", "kafka.*.backoff.ms", "kafka.*.backoff.max.ms", "kafka.connections.max.idle.ms"),
        *("kafka.metadata.max.age.ms", "kafka.client.dns.lookup", "kafka.client.rack", "kafka.heartbeat.interval.ms"),
        *("minoffsetspertrigger", "maxtriggerdelay"),
        *("fetchoffset.numretries", "fetchoffset.retryintervalms", "kafkaconsumer.polltimeoutms"),
    ),
    "spark_conf": (
        *(
            "spark.ui.*",
            "spark.eventlog.*",
            "spark.metrics.*",
            "spark.ssl.*",
            "spark.authenticate*",
            "spark.redaction.*",
            "spark.log.*",
        ),
        *("spark.cores.max", "spark.executor.cores", "spark.executor.memory", "spark.pyspark.python"),
        *("spark.driver.host", "spark.driver.bindaddress", "spark.yarn.*", "spark.kubernetes.*"),
        *("spark.memory.*", "spark.cleaner.*", "spark.network.*", "spark.rpc.*", "spark.shuffle.*", "spark.locality.*"),
        *(
            "spark.kryoserializer.buffer*",
            "spark.io.compression.*",
            "spark.io.encryption.*",
            "spark.broadcast.*",
            "spark.reducer.*",
        ),
        *("spark.default.parallelism", "spark.driver.maxresultsize", "spark.driver.port", "spark.blockmanager.port"),
        *("spark.port.maxretries", "spark.sql.shuffle.partitions", "spark.sql.autobroadcastjointhreshold"),
        *("spark.sql.codegen.*", "spark.sql.objecthashaggregate.*", "spark.sql.inmemorycolumnarstorage.*"),
        *("spark.sql.parquet.columnarreaderbatchsize", "spark.sql.parquet.compression.codec"),
        *("spark.sql.parquet.enablevectorizedreader", "spark.sql.files.maxpartitionbytes"),
        *("spark.sql.files.opencostinbytes", "spark.sql.adaptive.*", "spark.sql.ui.*", "spark.sql.debug.*"),
        *("spark.sql.maxmetadatastringlength", "spark.sql.maxplanstringlength"),
        *("spark.sql.streaming.numrecentprogressupdates", "spark.sql.streaming.ui.*"),
        "spark.sql.streaming.metricsenabled",
    ),
}
REASONS = {
    "starting*": "it replaces the start offsets of Headrace: records before it are skipped without an error",
    "ending*": "it replaces the end offsets of Headrace: records after it are skipped without an error",
    "kafka.group.id": "consumers that share a group take partitions from each other",
    "kafka.bootstrap.servers": "Headrace sets it, from the broker that it runs",
    "kafka.auto.offset.reset": "a missing offset would be skipped without an error",
    "spark.sql.parquet.*": "it changes what is written: times lose microseconds, files lose statistics",
    "spark.hadoop.*": "it changes how files are written and committed",
    "spark.sql.files.ignore*": "missing or damaged files would be skipped without an error",
}

# Spark and Kafka settings with which records would be lost, duplicated or misread without an error.
UNSAFE_VALUES = {
    "failondataloss": "false",
    "kafka.isolation.level": "read_uncommitted",
    "startingoffsets": "latest",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.streaming.checkpoint.verifymetadataexists.enabled": "false",
    "spark.sql.casesensitive": "false",
}
SAFE_VALUES = {"spark.sql.session.timezone": "utc", "spark.hadoop.fs.defaultfs": "file:///"}
"""Settings of which each other value does so."""
DECIDED = UNSAFE_VALUES.keys() | SAFE_VALUES.keys()


def breaks_guarantee(name: str, value: str) -> bool:
    """Whether an option with this value would break a guarantee. Case is ignored."""
    if (lower := name.lower()) in SAFE_VALUES:
        return value.lower() != SAFE_VALUES[lower]
    return lower in UNSAFE_VALUES and value.lower() == UNSAFE_VALUES[lower]


def reason_refused(field: str, name: str) -> str:
    """Return why the setting `field` does not accept an option of this name; "" when it does. Case is ignored."""
    lower = name.lower()
    if any(fnmatchcase(lower, pattern) for pattern in ALLOWED[field]):
        return ""
    known = (reason for pattern, reason in REASONS.items() if fnmatchcase(lower, pattern))
    return next(known, "it is not one of the options that are known to change no result")


CLUSTER_SIZES = {
    "spark.cores.max": "[1-9][0-9]{0,3}",
    "spark.executor.cores": "[1-9][0-9]?",
    "spark.executor.memory": "[0-9]+[mg]",
}
"""Options of HEADRACE_SPARK_CONF that we read too, and the form that we understand."""

RETIRED = {
    "WAREHOUSE_REGION": "AWS_REGION names it",
    "OPENLINEAGE_FILE": "HEADRACE_OPENLINEAGE_URL takes file:///path",
    "CONSOLE_PORT": "HEADRACE_CONSOLE takes a port",
    "CONSOLE_URL": "HEADRACE_CONSOLE takes the address",
    "METRICS_PORT": "HEADRACE_METRICS takes a port",
    "BATCH_BYTES": "it follows from HEADRACE_DRIVER_MEMORY",
    "BROKER_MEMORY": "HEADRACE_PROFILE=small halves it; HEADRACE_KAFKA_BOOTSTRAP names a Kafka of your own",
    "JOB_TRIGGER_SECONDS": "HEADRACE_TRIGGER_SECONDS paces batches, a second at least while a job reads",
    "RESTART_SECONDS": "the first pause is a second",
    "RESTART_TRIES": "5 failures in a row are given up; headrace up tries again",
    "SPARK_CORES": "HEADRACE_SPARK_CONF takes spark.cores.max",
    "EXECUTOR_CORES": "HEADRACE_SPARK_CONF takes spark.executor.cores",
    "EXECUTOR_MEMORY": "HEADRACE_SPARK_CONF takes spark.executor.memory",
    "EXECUTOR_PYTHON": "HEADRACE_SPARK_CONF takes spark.pyspark.python",
    "DRIVER_HOST": "HEADRACE_SPARK_CONF takes spark.driver.host",
    "DRIVER_BIND": "HEADRACE_SPARK_CONF takes spark.driver.bindAddress",
}
"""Settings of earlier versions, and what takes their place."""
