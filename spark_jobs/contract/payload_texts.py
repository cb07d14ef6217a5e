"""Payloads in other formats than JSON, as the JSON texts that the contract validates: a reader for each format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructType

from include.declare.avro_payloads import AvroFormat
from include.declare.avro_record import SchemaUnusable, avro_record, schemas_in
from include.declare.contract import Contract
from include.declare.envelopes import STRUCTURED, columns_read, event_headers
from include.declare.line_payloads import CsvFormat, TextFormat, csv_kind
from include.declare.payload_format import JsonSchemaFormat, paths_read
from include.declare.protobuf_payloads import ProtobufFormat
from include.declare.protobuf_schemas import protobuf_schema
from include.declare.writer_schemas import HEADER_BYTES
from include.ground.schema_registry import AVRO, PROTOBUF, RegisteredSchema
from spark_jobs.contract.java_function import java_function, new_instance
from spark_jobs.contract.record_reader import is_of_json, structure_faults

UNREAD = "_unread"
"""The column of records in another format than JSON: a rule and its detail, null where the payload was read."""
UNREAD_TYPE = "struct<rule:string,detail:string>"


def unread(rule: str | Column, detail: Column) -> Column:
    """Return the reason why a payload was not read."""
    return F.struct(F.lit(rule).alias("rule"), detail.alias("detail")).try_cast(UNREAD_TYPE)


def too_large(contract: Contract) -> Column:
    """Return the reason of a payload with more bytes than the contract takes, else null."""
    size = F.octet_length("value")
    return F.when(size > contract.limits.bytes, unread("size", size.cast("string")))


READ = StructType().add("rule", "string").add("detail", "string").add("json", "binary")
READ_BY = {AvroFormat.name: "AvroJson", ProtobufFormat.name: "ProtobufJson"}
CHANGE_ENVELOPE = Path(__file__).with_name("ChangeEnvelope.java")


def _sources(*names: str) -> list[Path]:
    return [Path(__file__).with_name(f"{name}.java") for name in (*names, "JsonBytes")]


def _framed_json(contract: Contract, schemas: Sequence[RegisteredSchema], bronze: DataFrame) -> DataFrame:
    """Return the records with what follows the zero byte and the schema's id as `value`, and UNREAD."""
    value = F.col("value")
    is_framed = (F.octet_length(value) >= HEADER_BYTES) & (F.hex(F.substring(value, 1, 1)) == "00")
    fault = F.when(value.isNotNull() & ~is_framed, unread("wire_format", F.hex(F.substring(value, 1, HEADER_BYTES))))
    payload = F.when(is_framed, F.expr(f"substring(value, {HEADER_BYTES + 1})"))
    return bronze.withColumns({"value": payload, UNREAD: fault})


def _text(contract: Contract, schemas: Sequence[RegisteredSchema], bronze: DataFrame) -> DataFrame:
    """Return the records with the JSON of a line as `value`, and UNREAD."""
    text = F.col("value").try_cast("string")
    line = F.regexp_replace(text, r"\r?\n\z", "")
    fault = F.when(~F.is_valid_utf8(text), unread("bad_utf8", F.lit(None).try_cast("string")))
    rows = bronze.withColumn(UNREAD, F.coalesce(too_large(contract), fault))
    json = F.to_json(F.struct(line.alias(contract.columns[0].path[0])))
    is_read = F.col(UNREAD).isNull() & F.col("value").isNotNull()
    return rows.withColumn("value", F.when(is_read, json).try_cast("binary")).select(*bronze.columns, UNREAD)


def _csv(contract: Contract, schemas: Sequence[RegisteredSchema], bronze: DataFrame) -> DataFrame:
    payload = contract.payload
    assert isinstance(payload, CsvFormat)
    names, function = payload.names(contract.columns), new_instance(bronze.sparkSession, *_sources("CsvLine"))
    function.form(payload.delimiter, payload.quote, payload.null_text, len(names))
    for column in contract.columns:
        function.add(column.path[0], names.index(column.path[0]), csv_kind(column))
    return _translated(contract, function, bronze)


def _by_schema(contract: Contract, schemas: Sequence[RegisteredSchema], bronze: DataFrame) -> DataFrame:
    """Return the records with the JSON that a function makes of each by its schema."""
    function = new_instance(bronze.sparkSession, *_sources(READ_BY[contract.payload.name], "FramedJson"))
    function.limit(contract.limits.depth)
    for is_text in (True, False):
        for path in paths_read(columns_read(contract), of_text=is_text):
            function.read(list(path), is_text)
    for schema in schemas:
        is_own = schema.type == contract.payload.schema_type
        try:
            text, why = SCHEMAS[schema.type](function, schema.text) if is_own else ("", f"is of type {schema.type}")
        except SchemaUnusable as error:
            text, why = "", str(error)
        function.schema(schema.id, text, why)
    return _translated(contract, function, bronze)


def _avro_schema(function: Any, text: str) -> tuple[str, str | None]:
    _ = avro_record(text)
    *others, own = schemas_in(text)
    text = json.dumps([*others, own]) if others else text
    refused = function.refused(text)
    return text, None if refused is None else f"is refused by Avro: {refused}"


SCHEMAS: Mapping[str, Callable[[Any, str], tuple[str, str | None]]] = {
    AVRO: _avro_schema,
    PROTOBUF: lambda _, text: (protobuf_schema(text).text, None),
}
"""By type: reader and schema → text for the reader, and why records cannot be read by it. Raises SchemaUnusable."""


def _translated(contract: Contract, function: Any, bronze: DataFrame) -> DataFrame:
    """Return the records with what a function of a value makes: why it has no JSON, or its JSON."""
    large = too_large(contract)
    read = java_function(bronze.sparkSession, function, READ, F.when(large.isNull(), F.col("value")))
    # A selection of its own: an expression that is used twice in one is computed twice.
    rows = bronze.withColumns({"_read": read, UNREAD: large})
    fault = F.when(F.col("_read.rule").isNotNull(), unread(F.col("_read.rule"), F.col("_read.detail")))
    why = F.coalesce(F.col(UNREAD), fault)
    return rows.withColumns({"value": F.col("_read.json"), UNREAD: why}).select(*bronze.columns, UNREAD)


READERS: Mapping[str, Callable[[Contract, Sequence[RegisteredSchema], DataFrame], DataFrame]] = {
    AvroFormat.name: _by_schema,
    ProtobufFormat.name: _by_schema,
    JsonSchemaFormat.name: _framed_json,
    TextFormat.name: _text,
    CsvFormat.name: _csv,
}
"""By the name of a format: contract, schemas and records → the records with their JSON as `value`, and UNREAD."""


def without_envelope(records: DataFrame, contract: Contract) -> DataFrame:
    """Return the records with the JSON that the contract's columns are read of as `value`."""
    return OPENED[contract.envelope](records, contract) if contract.envelope else records


def _opened_changes(records: DataFrame, contract: Contract) -> DataFrame:
    spark = records.sparkSession
    opened = java_function(spark, new_instance(spark, CHANGE_ENVELOPE), BinaryType(), F.col("value"))
    return records.withColumn("value", opened)


def _structured_events(records: DataFrame, contract: Contract) -> DataFrame:
    """Return events in binary mode as those that have their attributes in the value; other records as they are."""
    headers = {name: _header(header) for name, header in event_headers(contract).items()}
    is_read = F.col(UNREAD).isNull() if UNREAD in records.columns else F.lit(True)
    kind = F.coalesce(F.lower(_header("content-type").cast("string")), F.lit(""))
    is_binary = _header("ce_specversion").isNotNull() & ~kind.startswith(STRUCTURED) & is_read
    attributes = F.to_json(F.struct(*(value.cast("string").alias(name) for name, value in headers.items())))
    wrong = F.filter(F.array(*headers.values()), lambda each: ~F.is_valid_utf8(each.cast("string")))
    found = F.struct(attributes.alias("text"), F.try_element_at(wrong, F.lit(1)).alias("wrong"))
    # Each in a selection of its own: an expression that is used twice in one is computed twice.
    rows = records.withColumn("_around", F.when(is_binary, found))
    value, around, is_event = F.col("value"), F.col("_around.text"), F.col("_around").isNotNull()
    rows = rows.withColumn("_faults", F.when(is_event, structure_faults(value, contract.limits)))
    begun = F.concat(F.rtrim(around, F.lit("}")), F.when(around == "{}", "").otherwise(","), F.lit('"data":'))
    whole = F.when(is_of_json(F.col("_faults")), F.concat(begun.cast("binary"), value, F.lit(b"}")))
    event = F.coalesce(F.col("_around.wrong"), F.when(value.isNull(), around.cast("binary")).otherwise(whole))
    return rows.withColumn("value", F.coalesce(F.when(is_event, event), value)).select(*records.columns)


def _header(name: str) -> Column:
    """Return the last header of this name."""
    return F.try_element_at(F.filter("headers", lambda each: each["key"] == name), F.lit(-1))["value"]


OPENED = {"debezium": _opened_changes, "cloudevents": _structured_events}
"""By the name of an envelope."""


@dataclass(frozen=True)
class PayloadTexts:
    """Reads the records of a contract with the schemas by which they were written."""

    contract: Contract
    schemas: tuple[RegisteredSchema, ...] = ()

    def of(self, bronze: DataFrame) -> DataFrame:
        """Return the records with the JSON of each payload as `value`; unless JSON is the format, with UNREAD."""
        payload = self.contract.payload
        return READERS[payload.name](self.contract, self.schemas, bronze) if payload.is_translated else bronze
