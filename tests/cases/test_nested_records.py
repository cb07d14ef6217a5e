"""Values inside of objects, arrays and maps: which are read, and which reason names which path.

The oracle is plain Python over `json`. Each record is read in plain form, otherwise (a space more), and without a job.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import permutations
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from include.declare.contract import Column, Contract, Limits
from spark_jobs.backends.local.prepared_query import row_projection
from spark_jobs.contract.record_reader import record_reader
from spark_jobs.contract.validator import compiled_validator

ARRIVED = datetime(2026, 3, 1, 9, tzinfo=UTC)
BRONZE = "topic string, partition int, offset long, timestamp timestamp, value binary, _batch_id long"
TAG = Column("", "string", max_length=5)
ITEM = Column(
    "",
    "object",
    required=True,
    fields=(
        Column("sku", "string", required=True, min_length=1),
        Column("price", "number", precision=9, scale=2, minimum=Decimal(0)),
        Column("tags", "array", fields=(TAG,)),
    ),
)
ADDRESS = (
    Column("street", "string"),
    Column("zip_code", "string", required=True, pattern="^[0-9]{5}$", physical_name="zip"),
    Column("geo", "object", fields=(Column("lat", "double", minimum=-90.0, maximum=90.0), Column("lon", "double"))),
)
COLUMNS = (
    Column("id", "string", required=True, physical_name="order.id"),
    Column("seen_at", "timestamp", physical_name="order.seen"),
    Column("city", "string", values=("Bern", "Zug"), physical_name="/customer/home.address/city"),
    Column("address", "object", physical_name="customer.delivery", fields=ADDRESS),
    Column("items", "array", max_length=3, fields=(ITEM,)),
    Column("counts", "map", fields=(Column("", "bigint", minimum=0),)),
    Column("flag", "boolean"),
)
RAW = Column("raw", "variant", max_length=40, physical_name="more.raw")
LIMITS = Limits()
ORDER = '"order":{"id":"a"}'


def contract(*more: Column, limits: Limits = LIMITS) -> Contract:
    return Contract("d", "1", (*COLUMNS, *more), (), ("id",), limits=limits)


def rows_by(spark: SparkSession, declared: Contract, records: Sequence[bytes]) -> pa.Table:
    rows = [("t", 0, place, ARRIVED, bytearray(record), 0) for place, record in enumerate(records)]
    return compiled_validator(declared).validated(spark.createDataFrame(rows, BRONZE)).orderBy("_offset").toArrow()


def reasons_of(spark: SparkSession, declared: Contract, records: Sequence[bytes]) -> list[list[tuple[str, str, Any]]]:
    found = rows_by(spark, declared, records)["_reasons"].to_pylist()
    return [[(each["rule"], each["column"], each["detail"]) for each in reasons] for reasons in found]


class Fault(Exception):
    """The reason why a value is none of its type."""


def read(column: Column, value: Any, path: str, faults: list[tuple[str, str]]) -> Any:
    """Return a value as silver has it; note the faults of types."""
    if value is None:
        return None
    try:
        return READ[column.type](column, value, path, faults)
    except Fault as fault:
        faults.append((str(fault), path))
        return None


def read_text(column: Column, value: Any, path: str, faults: list[tuple[str, str]]) -> Any:
    if not isinstance(value, str):
        raise Fault("type")
    return value


def read_time(column: Column, value: Any, path: str, faults: list[tuple[str, str]]) -> Any:
    return datetime.fromisoformat(read_text(column, value, path, faults))


def read_flag(column: Column, value: Any, path: str, faults: list[tuple[str, str]]) -> Any:
    if not isinstance(value, bool):
        raise Fault("type")
    return value


def read_number(column: Column, value: Any, path: str, faults: list[tuple[str, str]]) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise Fault("type")
    if column.type == "bigint":
        if isinstance(value, Decimal):
            raise Fault("type")
        if not -(2**63) <= value < 2**63:
            raise Fault("out_of_range")
        return value
    if column.type == "double":
        if abs(Decimal(value)) >= Decimal("1.8e308"):
            raise Fault("out_of_range")
        return float(value) + 0.0
    number = Decimal(value)
    if abs(number) >= 10**7:
        raise Fault("out_of_range")
    if number != round(number, 2):
        raise Fault("scale")
    return number


def read_object(column: Column, value: Any, path: str, faults: list[tuple[str, str]]) -> Any:
    if not isinstance(value, dict):
        raise Fault("type")
    return {each.name: read(each, *inside(each, value, f"{path}.{each.name}"), faults) for each in column.fields}


def inside(column: Column, value: dict[str, Any], path: str) -> tuple[Any, str]:
    return value.get(column.physical_name or column.name), path


def read_array(column: Column, value: Any, path: str, faults: list[tuple[str, str]]) -> Any:
    if not isinstance(value, list):
        raise Fault("type")
    if len(value) > column.max_length:
        raise Fault("elements")
    return [read(column.fields[0], each, f"{path}[{n}]", faults) for n, each in enumerate(value)]


def read_map(column: Column, value: Any, path: str, faults: list[tuple[str, str]]) -> Any:
    if not isinstance(value, dict):
        raise Fault("type")
    return {key: read(column.fields[0], each, f"{path}[{key}]", faults) for key, each in value.items()}


READ = {
    "string": read_text,
    "timestamp": read_time,
    "boolean": read_flag,
    "bigint": read_number,
    "double": read_number,
    "number": read_number,
    "object": read_object,
    "array": read_array,
    "map": read_map,
}
PLACES = {
    "id": ["order", "id"],
    "seen_at": ["order", "seen"],
    "city": ["customer", "home.address", "city"],
    "address": ["customer", "delivery"],
}


def at_place(column: Column, record: Any) -> Any:
    """Return what a column reads of; Fault, if its way ends at a value that is no object."""
    value = record
    for member in PLACES.get(column.name, [column.name]):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise Fault("type")
        value = value.get(member)
    return value


def broken(column: Column, value: Any, path: str, around: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the rules that a value breaks, and those inside."""
    if value is None:
        if column.required and around:
            yield "missing_id" if path == "id" else "required", path
    elif column.type == "string":
        if not column.min_length <= len(value.encode()) <= column.max_length:
            yield "length", path
        if column.pattern and not (len(value) == 5 and value.isascii() and value.isdigit()):
            yield "pattern", path
        if column.values and value not in column.values:
            yield "enum", path
    elif column.type in ("number", "bigint", "double"):
        if column.minimum is not None and value < column.minimum:
            yield "range", path
        if column.maximum is not None and value > column.maximum:
            yield "range", path
    if column.type == "object":
        for each in column.fields:
            yield from broken(each, (value or {}).get(each.name), f"{path}.{each.name}", value is not None)
    elif column.type in ("array", "map") and value is not None:
        parts = value.items() if column.type == "map" else enumerate(value)
        for key, each in parts:
            yield from broken(column.fields[0], each, f"{path}[{key}]")


def expected(record: bytes) -> tuple[list[tuple[str, str]], dict[str, Any] | None]:
    """Return the reasons why a record is rejected, and its values if there are none."""
    given, faults, values = json.loads(record, parse_float=Decimal), list[tuple[str, str]](), dict[str, Any]()
    for column in COLUMNS:
        try:
            values[column.name] = read(column, at_place(column, given), column.name, faults)
        except Fault as fault:
            faults.append((str(fault), column.name))
    reasons = faults or [each for column in COLUMNS for each in broken(column, values[column.name], column.name)]
    return reasons, None if reasons else values


def drawn(rng: random.Random) -> dict[str, Any]:
    """Return a record in the contract's order, with some values that are wrong and members that no column reads."""
    wild = rng.choice([0, 0, 0.08])

    def one(*fitting: Any) -> Any:
        wrong = [None, "x", "", 7, -1, 1.25, 1e7, True, [], {}, ["x"], {"a": 1}, "123456", 10**20]
        return rng.choice(wrong) if rng.random() < wild else rng.choice(fitting)

    def some(made: Any, *most: Any) -> Any:
        return one(*[[made() for _ in range(rng.randrange(4))] for _ in range(2)])

    def item() -> Any:
        found = {
            "sku": one("a", "é"),
            "price": one(1, 2.5, 0.01, 9999999),
            "tags": some(lambda: one("x", "longer", None)),
        }
        return one({name: value for name, value in found.items() if rng.random() < 0.9})

    geo = {"lat": one(1.5, 90, -91), "lon": one(0, 1e300)}
    delivery = {"street": one("S", None), "zip": one("12345", "1234"), "geo": one(geo, None)}
    customer = {"home.address": one({"city": one("Bern", "Zug", "Rom")}), "delivery": one(delivery)}
    record = {
        "order": one({"id": one("a", "b"), "seen": rng.choice(["2026-03-01T08:00:00Z", None])}),
        "customer": one(customer, customer, None),
        "items": some(item),
        "counts": one({key: one(0, 5) for key in rng.sample(["a", "b", "c d"], rng.randrange(3))}),
        "flag": one(True, False),
    }
    kept = {name: value for name, value in record.items() if name == "order" or rng.random() < 0.9}
    if rng.random() < 0.2:
        kept["other"] = one({"x": [1, {}]}, "y")
    return kept


def texts() -> list[bytes]:
    rng, found = random.Random(7), dict[bytes, None]()
    while len(found) < 600:
        record = drawn(rng)
        found[json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()] = None
        found[json.dumps(record, indent=rng.choice([None, 1])).encode()] = None
    return list(found)


def by_way(spark: SparkSession, records: Sequence[bytes], declared: Contract) -> Iterator[tuple[str, pa.Table]]:
    yield "as written", rows_by(spark, declared, records)
    spaced = [b" " + record for record in records]
    yield "not in plain form", rows_by(spark, declared, spaced)
    rows = spark.createDataFrame([("t", 0, n, ARRIVED, bytearray(r), 0) for n, r in enumerate(records)], BRONZE)
    projection = row_projection(spark, rows.schema, compiled_validator(declared).validated)
    assert projection is not None
    yield "without a job", projection.of(rows.orderBy("offset").toArrow())


def typed(kind: Any, value: Any) -> Any:
    """Return a value with maps as dictionaries."""
    return dict(value) if pa.types.is_map(kind) and value is not None else value


def test_values_and_paths_of_reasons_are_those_of_python(spark: SparkSession) -> None:
    records = texts()
    right = [expected(record) for record in records]
    assert 100 < sum(not reasons for reasons, _ in right) < 500, "the draw has records of both kinds"
    for way, found in by_way(spark, records, contract()):
        names = [column.name for column in COLUMNS]
        kinds = {name: found.schema.field(name).type for name in names}
        for record, row, (reasons, values) in zip(records, found.to_pylist(), right, strict=True):
            assert [(each["rule"], each["column"]) for each in row["_reasons"]] == reasons, (way, record)
            if values is not None:
                assert {name: typed(kinds[name], row[name]) for name in names} == values, (way, record)


def test_nested_record_as_producers_write_it_is_in_plain_form(spark: SparkSession) -> None:
    address = '"customer":{"home.address":{"city":"Zug"},"delivery":{"zip":"12345","geo":{"lat":1.5,"lon":null}}}'
    items = '"items":[{"sku":"a","price":1.25,"tags":["x", "y"]},{"sku":"b"}]'
    plain = [
        f'{{{ORDER},{address},{items},"counts":{{"a":1,"b c":2}},"flag":true}}',
        f'{{{ORDER},"items":[],"counts":{{}}}}',
        f"{{{ORDER}}}",
        f'{{{ORDER},"items":[{{"price":1}}]}}',
        f'{{{ORDER},"items":[{{"sku":"a","tags":["toolong"]}}]}}',
        f'{{{ORDER},"items":[{{"sku":7}}],"flag":"true"}}',
        '{"order":{}}',
        '{"order":null}',
        "{}",
    ]
    other = [
        f'{{{ORDER},"counts":{{"a":1,"a":2}}}}',
        f'{{{ORDER},"counts":{{"a":null,"a":2}}}}',
        f'{{{ORDER},"items":[{{"sku":"a"}},]}}',
        f'{{{ORDER},"items":[{{"sku":"a","x":1}}]}}',
        f'{{{ORDER},"items":[{{"sku":"a"}},{{"sku":"a"}},{{"sku":"a"}},{{"sku":"a"}}]}}',
        f'{{{ORDER},"items":[{{"sku":"a"}}]',
        f'{{{ORDER},"items":[{{"sku":"a"}}',
        f'{{{ORDER},"items":[}}',
        f'{{{ORDER},"counts":{{"a"}}}}',
        f'{{{ORDER},"counts":{{"a":}}}}',
        f"{{{ORDER},{ORDER}}}",
        '{"order":{"id":"a"}',
        '{"order":7}',
    ]
    reader = record_reader(spark, contract().columns, LIMITS)
    found = [reader.isPlain(bytearray(record.encode())) for record in [*plain, *other]]
    assert found == [True] * len(plain) + [False] * len(other)


def test_columns_that_read_inside_of_one_another_are_declared_in_any_order(spark: SparkSession) -> None:
    columns, record = [Column("id", "string", required=True)], dict[str, Any](id="x")
    for number, order in enumerate(permutations("abc")):
        member, value = f"m{number}", dict[str, Any]()
        for name in order:
            path = {"a": member, "b": f"{member}.b", "c": f"{member}.b.c"}[name]
            fields = {"a": (Column("e", "string"),), "b": (Column("d", "string"),), "c": ()}[name]
            columns.append(
                Column(f"{name}{number}", "object" if fields else "string", physical_name=path, fields=fields)
            )
            (value if name == "a" else value.setdefault("b", {}))[{"a": "e", "b": "d", "c": "c"}[name]] = name
        record[member] = value
    declared = Contract("d", "1", tuple(columns), (), ("id",))
    plain = json.dumps(record, separators=(",", ":")).encode()
    assert record_reader(spark, declared.columns, LIMITS).isPlain(bytearray(plain)), "it is in the contract's order"
    for row in rows_by(spark, declared, [plain, b" " + plain]).to_pylist():
        for number in range(6):
            found = [row[f"{name}{number}"] for name in "abc"]
            assert found == [{"e": "a"}, {"d": "b"}, "c"], number


WHOLE = Column(
    "whole",
    "object",
    physical_name="order",
    fields=(
        Column("id", "string", max_length=3),
        Column("seen", "string"),
        Column("place", "object", fields=(Column("zip_code", "string", physical_name="zip"),)),
        Column(
            "lines", "array", fields=(Column("", "object", fields=(Column("n", "bigint"), Column("kept", "variant"))),)
        ),
    ),
)
TAKEN = (
    Column("id", "string", required=True, physical_name="order.id"),
    Column("seen_at", "timestamp", physical_name="order.seen"),
    Column("zip_code", "bigint", physical_name="order.place.zip"),
    Column("place", "object", physical_name="order.place", fields=(Column("zip", "string"), Column("no", "bigint"))),
    Column("number", "bigint", physical_name="raw.n"),
    Column("raw", "variant"),
    Column("raw_text", "string", physical_name="raw.text"),
)
SEEN, AT = "2026-03-01T08:00:00Z", datetime(2026, 3, 1, 8, tzinfo=UTC)
SHARED: Mapping[str, tuple[list[tuple[str, str]], dict[str, Any]]] = {
    f'{{"order":{{"id":"a","seen":"{SEEN}","place":{{"zip":null,"no":5}},"lines":[{{"n":1,"kept":[2]}}]}}}}': (
        [],
        {
            "id": "a",
            "seen_at": AT,
            "place": {"zip": None, "no": 5},
            "whole": {"id": "a", "seen": SEEN, "place": {"zip_code": None}, "lines": [{"n": 1, "kept": "[2]"}]},
        },
    ),
    '{"order":{"id":"a"},"raw":{"n":7,"more":[1],"text":"x"}}': (
        [],
        {
            "id": "a",
            "number": 7,
            "raw": '{"n":7,"more":[1],"text":"x"}',
            "raw_text": "x",
            "whole": {"id": "a", "seen": None, "place": None, "lines": None},
        },
    ),
    '{"order":{"id":"abcd"}}': ([("length", "whole.id")], {}),
    '{"order":{"id":null}}': ([("missing_id", "id")], {}),
    '{"order":{"id":1,"place":{"zip":"x"}}}': ([("type", "id"), ("type", "zip_code"), ("type", "whole.id")], {}),
    '{"order":{"id":"a","place":[1]}}': (
        [("type", "zip_code"), ("type", "place"), ("type", "whole.place")], {},
    ),
    '{"order":{"id":"a"},"raw":"x"}': ([("type", "number"), ("type", "raw_text")], {}),
}  # fmt: skip


def test_value_is_in_its_own_column_and_in_the_object_that_declares_it(spark: SparkSession) -> None:
    for columns in ((*TAKEN, WHOLE), (WHOLE, *TAKEN)):
        declared = Contract("d", "1", columns, (), ("id",))
        first, *_ = records = [text.encode() for text in SHARED]
        reader = record_reader(spark, [each for each in columns if each is not TAKEN[5]], LIMITS)
        assert reader.isPlain(bytearray(first.replace(b',"kept":[2]', b"")))
        for way, found in by_way(spark, records, declared):
            for record, row, (reasons, values) in zip(records, found.to_pylist(), SHARED.values(), strict=True):
                given = {(each["rule"], each["column"]) for each in row["_reasons"]}
                assert given == set(reasons), (way, record)
                expected = {column.name: values.get(column.name) for column in columns}
                assert reasons or {name: row[name] for name in expected} == expected, (way, record)


STRUCTURE: Mapping[str, tuple[str, str, str | None]] = {
    f'{{{ORDER},"items":[{{"sku":"a"}},{{"sku":': ("malformed", "", "$.items[1].sku"),
    f'{{{ORDER},"items":[1,2': ("malformed", "", "$.items[1]"),
    f'{{{ORDER},"other":{{"a":[0,{{"b":1,"b":2}}]}}}}': ("duplicate_key", "", "$.other.a[1].b"),
    f'{{{ORDER},"items":[{{"sku":"a","sku":"b"}}]}}': ("duplicate_key", "", "$.items[0].sku"),
    f'{{{ORDER},"counts":{{"a":1,"a":2}}}}': ("duplicate_key", "", "$.counts.a"),
    f'{{{ORDER},"items":[{{"sku":"\\ud83d"}}]}}': ("bad_utf8", "", "$.items[0].sku"),
    f'{{{ORDER},"counts":{{"\\udeeb":1}}}}': ("bad_utf8", "", "$.counts.?"),  # as Java writes half a character
    f'{{{ORDER},"items":[{{"sku":"a\\u0001"}}]}}': ("control_char", "", "$.items[0].sku"),
    f'{{{ORDER},"items":[{{"sku":"a","price":NaN}}]}}': ("out_of_range", "", "$.items[0].price"),
    f'{{{ORDER},"other":[{"[" * 5}{"]" * 5}]}}': ("depth", "", "$.other[0][0][0][0]"),
}


def test_fault_of_the_structure_names_its_place(spark: SparkSession) -> None:
    declared = contract(limits=Limits(depth=5))
    found = reasons_of(spark, declared, [record.encode() for record in STRUCTURE])
    assert dict(zip(STRUCTURE, found, strict=True)) == {record: [reason] for record, reason in STRUCTURE.items()}


def test_limits_of_a_record_and_of_an_array(spark: SparkSession) -> None:
    declared = contract(limits=Limits(bytes=200, elements=2))
    records = {
        f'{{{ORDER},"flag":true}}': [],
        f'{{{ORDER},"note":"{"x" * 200}"}}': [("size", "", None)],
        f'{{{ORDER},"items":[{{"sku":"a"}},{{"sku":"b"}},{{"sku":"c"}}]}}': [("elements", "items", "3")],
        f'{{{ORDER},"counts":{{"a":1,"b":1,"c":1}}}}': [("elements", "counts", "3")],
        f'{{{ORDER},"other":[1,2,3]}}': [],
    }
    assert reasons_of(spark, declared, [record.encode() for record in records]) == list(records.values())


def test_details_are_the_values_as_sent(spark: SparkSession) -> None:
    records = {
        f'{{{ORDER},"items":[{{"sku":"a"}},{{"sku":1}}]}}': [("type", "items[1].sku", "1")],
        f'{{{ORDER},"items":[1,"x",{{"sku":"a","price":1e400}}]}}': [
            ("type", "items[0]", "1"),
            ("type", "items[1]", "x"),
            ("out_of_range", "items[2].price", "1e400"),
        ],
        f'{{{ORDER},"customer":"me"}}': [("type", "city", "me"), ("type", "address", "me")],
        f'{{{ORDER},"customer":{{"home.address":[1]}}}}': [("type", "city", "[1]")],
        f'{{{ORDER},"customer":{{"delivery":{{"zip":"12345","geo":{{"lat":91}}}}}}}}': [
            ("range", "address.geo.lat", "91.0")
        ],
        f'{{{ORDER},"counts":{{"a b":-1}}}}': [("range", "counts[a b]", "-1")],
    }
    assert reasons_of(spark, contract(), [record.encode() for record in records]) == list(records.values())


def test_part_that_is_kept_is_the_json_that_was_sent(spark: SparkSession) -> None:
    parts = {
        '{"a": [1.50, "\\u00e9\\n"],"b":null}': ([], '{"a": [1.50, "\\u00e9\\n"],"b":null}'),
        "[ ]": ([], "[ ]"),
        '"a\\"b"': ([], '"a\\"b"'),
        "-1.0e5": ([], "-1.0e5"),
        "true": ([], "true"),
        "null": ([], None),
        f'"{"x" * 39}"': (["length"], None),
    }
    declared = contract(RAW)
    for space in ("", " "):
        records = [f'{{{ORDER},"more":{{"raw":{space}{part}{space}}}}}'.encode() for part in parts]
        found = rows_by(spark, declared, records).to_pylist()
        for row, (reasons, value) in zip(found, parts.values(), strict=True):
            assert [each["rule"] for each in row["_reasons"]] == reasons
            assert reasons or row["raw"] == value
