"""Which Spark settings and Kafka source options users may give, those known to change no result; unsafe values."""

from __future__ import annotations

from fnmatch import fnmatchcase

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
    "spark.sql.session.timezone": None,
    "spark.sql.ansi.enabled": "false",
    "spark.sql.streaming.checkpoint.verifymetadataexists.enabled": "false",
    "spark.sql.casesensitive": "false",
}


def breaks_guarantee(name: str, value: str) -> bool:
    """Whether an option with this value would break a guarantee; of time zones all but UTC do. Case is ignored."""
    if (lower := name.lower()) not in UNSAFE_VALUES:
        return False
    unsafe = UNSAFE_VALUES[lower]
    return value.upper() != "UTC" if unsafe is None else value.lower() == unsafe


def reason_refused(field: str, name: str) -> str:
    """Return why the setting `field` does not accept an option of this name; "" when it does. Case is ignored."""
    lower = name.lower()
    if any(fnmatchcase(lower, pattern) for pattern in ALLOWED[field]):
        return ""
    known = (reason for pattern, reason in REASONS.items() if fnmatchcase(lower, pattern))
    return next(known, "it is not one of the options that are known to change no result")
