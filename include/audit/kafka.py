"""Kafka by a consumer of the audit's own: `read_committed`, explicit offsets, no group, no commits (adr-0002).

A JVM reads a partition into a temporary file of columns, which is mapped and deleted. The chunks of a partition cover
the requested offsets without a gap; each holds every committed record of its range. Offsets without a record
(transaction markers, aborted or compacted records) are legal.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any, cast
from uuid import uuid4

import polars as pl
import pyarrow as pa
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from include.ground.errors import Transient
from include.ground.java import find_java
from include.ground.kafka import log_end_offsets, log_start_offsets, topic_id
from include.ground.kafka_address import source_options
from include.ground.processes import ended_how

SOURCE = Path(__file__).with_name("KafkaRecords.java")
CLASS = "headrace.KafkaRecords"
BROKERS_JARS = ("kafka-clients", "lz4-java", "snappy-java", "zstd-jni", "slf4j-api")
"""Kafka's client of another version than the one that Spark uses, and what it needs to decompress."""
SPARKS_JARS = ("janino", "commons-compiler", "py4j")
"""A compiler for SOURCE, since the installed Java may have none, and what carries the calls."""
JVM_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC")
"""Two readers hold a read each, in arrays of twice its size, and Kafka's answers."""
BYTES = "org.apache.kafka.common.serialization.ByteBufferDeserializer"
"""The client makes no array of its own of each key and value."""
POLLED = 1_000
"""Records of one poll. 10,000 leave the processor's cache before they are copied: reading takes half as long again."""
OPTIONS = {
    "isolation.level": "read_committed",
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "max.poll.records": str(POLLED),
    "fetch.max.bytes": str(8 << 20),
    "max.partition.fetch.bytes": str(8 << 20),
    "key.deserializer": BYTES,
    "value.deserializer": BYTES,
}
ALIGNED = 8
END_SECONDS = 5.0
"""The connection breaks before the process is gone: how long its end is waited for."""
QUIET = logging.NullHandler()
PY4J = logging.getLogger("py4j")
"""It logs each call that fails, with a traceback; what failed is raised too."""


class KafkaReadFailed(Exception):
    """A partition could not be read; the text says why, in the words of Kafka's client or of the JVM."""


@contextmanager
def _read_failures() -> Iterator[None]:
    """Raise what fails in a JVM as KafkaReadFailed, while the JVM still can tell the reason."""
    try:
        yield
    except Py4JJavaError as error:
        raise KafkaReadFailed(str(error.java_exception.toString())) from error
    except Py4JError as error:
        raise KafkaReadFailed(f"the JVM that reads Kafka {JVM.end()}") from error


class _SharedJvm:
    """A JVM for all readers of this process: started with the first, ended with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._gateway: Any = None
        self._class: Any = None
        self._folder: Any = None

    @property
    def process(self) -> Popen[bytes]:
        return cast("Popen[bytes]", self._gateway.java_process)

    @contextmanager
    def reader(self, jars: Path) -> Iterator[PartitionReader]:
        """Yield a reader that has no partition yet. Raises KafkaReadFailed, also for what fails inside."""
        with self._lock:
            if self._users == 0:
                self._start(jars)
            self._users += 1
        try:
            with _read_failures():
                yield PartitionReader(self._class.newInstance(), Path(self._folder.name))
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._end()

    def end(self) -> str:
        """Return how the JVM ended, which no longer answers."""
        with suppress(TimeoutExpired):
            return ended_how(self.process.wait(END_SECONDS))
        return "does not answer"

    def _start(self, jars: Path) -> None:
        # The JVM also unpacks native libraries there, which it does not delete.
        self._folder = TemporaryDirectory(prefix="headrace-audit-", ignore_cleanup_errors=True)
        # For good: objects whose JVM has ended log when they are deleted.
        PY4J.addHandler(QUIET)
        PY4J.propagate = False
        try:
            with _read_failures():
                self._gateway = _gateway(jars, f"-Djava.io.tmpdir={self._folder.name}")
                self._class = _compiled(self._gateway)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        if self._gateway is not None:
            with suppress(Py4JError, OSError):
                self._gateway.shutdown()
            self.process.kill()
            self.process.wait()
        self._gateway = self._class = None
        self._folder.cleanup()


JVM = _SharedJvm()


def _gateway(jars: Path, *options: str) -> JavaGateway:
    sparks = Path(str(find_spec("pyspark").origin)).parent / "jars"  # type: ignore[union-attr]
    parts = ((jars / "broker", BROKERS_JARS), (sparks, SPARKS_JARS))
    found = [_jar(folder, name) for folder, names in parts for name in names]
    java = str(find_java(os.environ).path)
    try:
        port, token, process = launch_gateway(
            classpath=os.pathsep.join(found),
            jarpath=found[-1],
            javaopts=[*JVM_OPTIONS, *options],
            java_path=java,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
    except (OSError, ValueError) as error:
        # A ValueError: the JVM ended before it printed its port.
        raise KafkaReadFailed(f"the JVM that reads Kafka did not start ({java}): {error}") from error
    parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
    return JavaGateway(gateway_parameters=parameters, java_process=process)


def _jar(folder: Path, name: str) -> str:
    found = next(folder.glob(f"{name}-[0-9]*.jar"), None)
    if found is None:
        raise KafkaReadFailed(f"{folder} has no jar of {name}; make setup downloads it")
    return str(found)


def _compiled(gateway: Any) -> Any:
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(SOURCE.read_text("utf-8"))
    return compiler.getClassLoader().loadClass(CLASS)


@dataclass(frozen=True)
class PartitionReader:
    """Reads a partition's committed records in turn, by way of files in a folder."""

    java: Any
    folder: Path

    def read(self, end: int, most_records: int, most_bytes: int) -> tuple[int, pl.DataFrame]:
        """Return the next records below `end`, and the offset before which all are read.

        There may be fewer, or none, while Kafka has not answered.
        """
        file = self.folder / uuid4().hex
        position, *sizes = map(int, self.java.read(str(file), end, most_records, most_bytes).split())
        with pa.memory_map(str(file)) as mapped:
            content = mapped.read_buffer()
        file.unlink()
        return position, _frame(content, *sizes)


@contextmanager
def partition_reader(jars: Path, bootstrap: str, topic: str, partition: int, start: int) -> Iterator[PartitionReader]:
    """Yield a reader of the records from offset `start` on. Raises KafkaReadFailed."""
    # Spark's source has the options of Kafka's client, with a prefix.
    address = {name.removeprefix("kafka."): value for name, value in source_options(bootstrap).items()}
    with JVM.reader(jars) as reader:
        try:
            reader.java.open({**address, **OPTIONS}, topic, partition, start)
            yield reader
        finally:
            with suppress(Py4JError):
                reader.java.close()


class _Columns:
    def __init__(self, content: pa.Buffer) -> None:
        self._content, self._at = content, 0

    def _next(self, size: int) -> pa.Buffer:
        found = self._content.slice(self._at, size)
        self._at += -(-size // ALIGNED) * ALIGNED
        return found

    def numbers(self, kind: pa.DataType, count: int) -> pa.Array:
        return pa.Array.from_buffers(kind, count, [None, self._next(count * kind.bit_width // 8)])

    def texts(self, kind: pa.DataType, count: int, size: int) -> pa.Array:
        valid, ends = self._next(-(-count // 8)), self._next(4 * (count + 1))
        return pa.Array.from_buffers(kind, count, [valid, ends, self._next(size)])


def _frame(
    content: pa.Buffer, count: int, keys: int, values: int, headers: int, header_keys: int, header_values: int
) -> pl.DataFrame:
    columns = _Columns(content)
    offsets, timestamps = columns.numbers(pa.int64(), count), columns.numbers(pa.int64(), count)
    types, ends = columns.numbers(pa.int32(), count), columns.numbers(pa.int32(), count + 1)
    key, value = columns.texts(pa.binary(), count, keys), columns.texts(pa.binary(), count, values)
    of_header = columns.texts(pa.string(), headers, header_keys), columns.texts(pa.binary(), headers, header_values)
    listed = pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(list(of_header), ["key", "value"]))
    table = pa.table(
        {
            "offset": offsets,
            "timestamp": timestamps,
            "timestamp_type": types,
            "key": key,
            "value": value,
            "headers": listed,
        }
    )
    return pl.DataFrame(pl.from_arrow(table))


CHUNK_RECORDS = 200_000
CHUNK_BYTES = 64 * 1024 * 1024
READ_BYTES = 16 * 1024 * 1024
READ_TIMEOUT = 30.0
HEADERS = pl.List(pl.Struct({"key": pl.String, "value": pl.Binary}))
RECORD: dict[str, pl.DataType] = {
    "offset": pl.Int64(),
    "timestamp": pl.Int64(),
    "timestamp_type": pl.Int32(),
    "key": pl.Binary(),
    "value": pl.Binary(),
    "headers": HEADERS,
}


class AuditUnavailable(Transient):
    """Kafka could not be read to the end, so the audit has no result."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; nothing was audited", "headrace up, then headrace audit again")
        self.why = why


@dataclass(frozen=True)
class Chunk:
    """All committed records that Kafka has in [start, end) of a partition, ascending.

    `records` has the columns of RECORD: timestamp in milliseconds; timestamp_type as in Spark (0 set by
    the producer, 1 by the broker).
    """

    partition: int
    start: int
    end: int
    records: pl.DataFrame


RecordSource = Callable[[int, int, int, Iterable[int]], Iterator[Chunk]]
"""Yields the records of a partition from an offset up to another; some chunk ends at each of the offsets given last."""


@dataclass(frozen=True)
class Topic:
    """A topic as the broker reports it: per partition the log start and end offsets, and a reader of its records."""

    name: str
    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    records: RecordSource


def open_topic(bootstrap: str, name: str, jars: Path) -> Topic:
    """Return a topic with its current offsets; `jars` is the folder of the verified ones.

    Raises BrokerUnreachable or TopicMissing.
    """
    starts, ends = log_start_offsets(bootstrap, name), log_end_offsets(bootstrap, name)

    def records(partition: int, start: int, end: int, chunk_ends: Iterable[int]) -> Iterator[Chunk]:
        return read_chunks(bootstrap, name, partition, start, end, jars, chunk_ends)

    return Topic(name, topic_id(bootstrap, name), starts, ends, records)


def read_chunks(
    bootstrap: str, topic: str, partition: int, start: int, end: int, jars: Path, chunk_ends: Iterable[int] = ()
) -> Iterator[Chunk]:
    """Yield the partition's records in [start, end), a chunk of up to about 200,000 or 64 MB after the other.

    A chunk ends at each offset of `chunk_ends`, which ascend. Raises AuditUnavailable.
    """
    if start >= end:
        return
    try:
        with partition_reader(jars, bootstrap, topic, partition, start) as reader:
            for until in chain((each for each in chunk_ends if start < each < end), [end]):
                yield from _chunks(reader, partition, start, until)
                start = until
    except KafkaReadFailed as error:
        raise AuditUnavailable(f"reading {topic}/{partition} at {bootstrap} failed: {error}") from error


def _chunks(reader: PartitionReader, partition: int, start: int, end: int) -> Iterator[Chunk]:
    """A chunk ends after its last record; the last chunk ends at `end`, which may have no record."""
    position, rows, size, parts = start, 0, 0, list[pl.DataFrame]()
    while position < end:
        reached, records = _next_read(reader, partition, position, end, CHUNK_RECORDS - rows)
        position, rows, size = reached, rows + len(records), size + int(records.estimated_size())
        parts.append(records)
        if rows >= CHUNK_RECORDS or size >= CHUNK_BYTES or position >= end:
            yield Chunk(partition, start, position, pl.concat(parts))
            start, rows, size, parts = position, 0, 0, []


def _next_read(reader: PartitionReader, partition: int, position: int, end: int, most: int) -> tuple[int, pl.DataFrame]:
    """Return the next offset to read, which is behind `position`, and the records before it."""
    began = time.monotonic()
    while time.monotonic() - began <= READ_TIMEOUT:
        reached, records = reader.read(end, most, READ_BYTES)
        if reached > position:
            return reached, records
    raise AuditUnavailable(f"partition {partition}: no record after offset {position} for {READ_TIMEOUT:.0f} s")
