"""Avro records as the JSON texts that the contract validates (adr-0003).

They are decoded with the schema by which the record was written, by Spark's own reader. A field becomes the JSON that
has the same meaning: a time in UTC, a date, a decimal with its digits. Only the contract's fields are decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from include.declare.avro_record import AvroField, AvroRecord, SchemaUnusable, avro_record
from include.declare.column_type import AvroKind
from include.declare.contract import Contract
from include.ground.schema_registry import AVRO as AVRO_TYPE
from include.ground.schema_registry import RegisteredSchema
from spark_jobs.contract.unread import UNREAD, WireFrame, too_large, unread

TEXTS = (AvroKind.text, AvroKind.bytes)
DAY_US = 86_400_000_000
UNKNOWN_SCHEMA, UNUSABLE_SCHEMA, UNDECODABLE = "unknown_schema", "unusable_schema", "undecodable"
# Appended to each payload before decoding: it stays unread only if the payload is exactly one record.
END = "486561647261636521"
OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "dateFormat": "yyyy-MM-dd",
    "ignoreNullFields": "false",
}


def avro_texts(contract: Contract, schemas: Sequence[RegisteredSchema], bronze: DataFrame) -> DataFrame:
    """Return the records with their JSON as `value`, and UNREAD."""
    readers = [_Reader.of(bronze, contract, each) for each in schemas]
    usable = [reader for reader in readers if not reader.unusable]
    frame = WireFrame.of_value()
    large = too_large(contract)
    ready = F.when(large.isNull(), F.concat(frame.payload, F.unhex(F.lit(END))))
    rows = bronze.withColumns({"_schema": frame.schema, "_ready": ready, UNREAD: F.coalesce(frame.fault, large)})
    records = {reader.column: F.when(F.col("_schema") == reader.schema.id, reader.record()) for reader in usable}
    # A selection of its own: an expression that is used twice in one is computed twice.
    rows = rows.withColumns(records) if records else rows
    text = _by_schema(((reader.schema.id, reader.text()) for reader in usable), F.lit(None).cast("string"))
    unknown = F.when(F.col("_schema").isNotNull(), unread(UNKNOWN_SCHEMA, F.col("_schema").cast("string")))
    fault = _by_schema(((reader.schema.id, reader.fault()) for reader in readers), unknown)
    why = F.coalesce(F.col(UNREAD), fault)
    decoded = rows.withColumns({"value": F.when(why.isNull(), text).try_cast("binary"), UNREAD: why})
    return decoded.select(*bronze.columns, UNREAD)


@dataclass(frozen=True)
class _Reader:
    """How records of one schema are read; `unusable` says why they cannot be."""

    contract: Contract
    schema: RegisteredSchema
    record_type: AvroRecord | None = None
    unusable: str = ""

    @classmethod
    def of(cls, bronze: DataFrame, contract: Contract, schema: RegisteredSchema) -> _Reader:
        """Return the reader of a schema; a schema that Spark cannot read is unusable, not an error of the stream."""
        if schema.type != AVRO_TYPE:
            return cls(contract, schema, unusable=f"is of type {schema.type}")
        try:
            reader = cls(contract, schema, avro_record(schema.text))
            _ = bronze.select(reader._decoded(F.col("value"))).schema
        except SchemaUnusable as error:
            return cls(contract, schema, unusable=str(error))
        except (Py4JJavaError, PySparkException) as error:
            return cls(contract, schema, unusable=f"is refused by Spark: {str(error).splitlines()[0][:200]}")
        return reader

    @property
    def column(self) -> str:
        return f"_record_{self.schema.id}"

    def record(self) -> Column:
        """Return the decoded record and the rest, which is END if the payload is exactly the record."""
        return self._decoded(F.col("_ready"))

    def _decoded(self, value: Column) -> Column:
        assert self.record_type is not None
        written, read = json.loads(self.schema.text), self.record_type.reader(self._members(), self._base64())
        options = {**OPTIONS, "avroSchema": json.dumps(_with_end(read))}
        return from_avro(value, json.dumps(_with_end(written)), options)

    def text(self) -> Column:
        """Return the record as JSON, the fields in the contract's order."""
        fields = self._fields()
        there = [fields[member] for member in self._members() if member in fields]
        members = [self._value(field).alias(field.name) for field in there]
        return F.to_json(F.struct(*members), JSON_OPTIONS) if members else F.lit("{}")

    def _value(self, field: AvroField) -> Column:
        # An object is not a value of any column, so the record is rejected by the type of this field.
        if not field.is_readable:
            return F.struct(F.lit(field.kind).alias("avro"))
        value = self._column(field)
        return _clock(field, value) if field.kind == AvroKind.time else value

    def fault(self) -> Column:
        """Return why a record of this schema has no text, or null."""
        about = F.lit(f"schema {self.schema.id}")
        if self.unusable:
            return unread(UNUSABLE_SCHEMA, F.lit(f"schema {self.schema.id} {self.unusable}"))
        whole = F.coalesce(F.hex(F.col(f"{self.column}.end")) == END, F.lit(False))
        named = [field for field in self._fields().values() if field.kind in TEXTS and field.name not in self._base64()]
        texts = [self._column(field) for field in named]
        valid = [F.coalesce(F.is_valid_utf8(text), F.lit(True)) for text in texts]
        is_text = reduce(Column.__and__, valid, F.lit(True))
        return F.when(~whole, unread(UNDECODABLE, about)).when(~is_text, unread("bad_utf8", about))

    def _fields(self) -> Mapping[str, AvroField]:
        assert self.record_type is not None
        members = self._members()
        return {field.name: field for field in self.record_type.fields if field.name in members}

    def _members(self) -> list[str]:
        return [column.member for column in self.contract.columns]

    def _base64(self) -> list[str]:
        """Return the members whose bytes stay bytes, which JSON has as base64: those of Avro's type bytes."""
        assert self.record_type is not None
        kinds = {field.name: field.kind for field in self.record_type.fields}
        members = [column.member for column in self.contract.columns if column.kind.is_base64]
        return [member for member in members if kinds.get(member) == AvroKind.bytes]

    def _column(self, field: AvroField) -> Column:
        return F.col(f"{self.column}.payload.`{field.name}`")


def _clock(field: AvroField, value: Column) -> Column:
    """Return a time of day as text; a number that is none as itself, which no column takes for a time."""
    micros = value.try_cast("long") * (1 if "time-micros" in json.dumps(field.type) else 1_000)
    text = F.date_format(F.timestamp_micros(micros), "HH:mm:ss.SSSSSS")
    return F.when(micros.between(0, DAY_US - 1), text).otherwise(value.try_cast("string"))


def _with_end(record: Any) -> dict[str, Any]:
    """Return the schema of a record that is followed by END. Without a namespace, which the record's would inherit."""
    end = {"type": "fixed", "name": "HeadraceEnd", "size": len(END) // 2}
    fields = [{"name": "payload", "type": record}, {"name": "end", "type": end}]
    return {"type": "record", "name": "HeadraceFrame", "fields": fields}


def _by_schema(cases: Iterable[tuple[int, Column]], otherwise: Column) -> Column:
    """Return the column of each record's schema."""
    found: Column | None = None
    for number, column in cases:
        is_own = F.col("_schema") == number
        found = F.when(is_own, column) if found is None else found.when(is_own, column)
    return otherwise if found is None else found.otherwise(otherwise)
