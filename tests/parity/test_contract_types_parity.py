"""Every type of a column, on every path, against plain Python: what is accepted, as which value, and why not.

The paths: records in plain form and the same values otherwise, in one query of Spark and without a job (few records),
and the audit's SQL. The tokens lie around each limit of a type; more are random. HEADRACE_TYPE_TOKENS random tokens for
each type (default 60).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import random
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deliveries import parity_seed
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.audit.silver import payload_member
from include.declare.contract import Column, Contract
from include.declare.contract_types import COLUMN_TYPES
from include.read.memory_database import memory_database
from spark_jobs.backends.local.prepared_query import row_projection
from spark_jobs.contract.record_reader import record_reader
from spark_jobs.contract.validator import compiled_validator

RANDOM_TOKENS = int(os.environ.get("HEADRACE_TYPE_TOKENS", "60"))
ARRIVED = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BRONZE = "topic string, partition int, offset long, timestamp timestamp, value binary, _batch_id long"
Rng = random.Random


class Fault(Exception):
    """The reason why a token is no value of a type."""


@dataclass(frozen=True)
class Case:
    """How Python reads a token of a type; tokens around its limits; a random one. Digits of a decimal: 9, of them 3."""

    read: Callable[[str], Any]
    tokens: tuple[str, ...]
    generate: Callable[[Rng], str]


def text(token: str) -> str:
    value = json.loads(token, parse_constant=lambda constant: constant)
    if not isinstance(value, str) or not token.startswith('"'):
        raise Fault("type")
    return value


def is_number(token: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", token) is not None


def integer(bits: int) -> Callable[[str], Any]:
    def read(token: str) -> int:
        if not re.fullmatch(r"-?\d+", token):
            raise Fault("type")
        if not -(2 ** (bits - 1)) <= int(token) < 2 ** (bits - 1):
            raise Fault("out_of_range")
        return int(token)

    return read


def decimal(token: str) -> Decimal:
    if not is_number(token):
        raise Fault("type")
    value = exact(token)
    scaled = value * 1000
    if abs(value) >= 10**6 or (scaled.denominator != 1 and round_half_up(scaled) >= 10**9):
        raise Fault("out_of_range")
    if scaled.denominator != 1:
        raise Fault("scale")
    return Decimal(scaled.numerator).scaleb(-3)


def exact(token: str) -> Fraction:
    """The number of a token; one beyond 10^±1000 stands for all, whose digits would fill the memory."""
    number = Decimal(token)
    if number and abs(number.adjusted()) > 1000:
        number = Decimal(1).scaleb(1000 if number.adjusted() > 0 else -1000).copy_sign(number)
    return Fraction(number)


def round_half_up(value: Fraction) -> int:
    return int(abs(value) + Fraction(1, 2))


def double(token: str) -> float:
    if not is_number(token):
        raise Fault("type")
    value = float(token)
    if value in (float("inf"), float("-inf")):
        raise Fault("out_of_range")
    return value + 0.0


def single(token: str) -> float:
    """The float that is nearest to the token itself: not to its double, which may be between two floats."""
    if not is_number(token):
        raise Fault("type")
    value = exact(token)
    if abs(value) >= Fraction(2**128 - 2**103):
        raise Fault("out_of_range")
    near = struct.unpack("<I", struct.pack("<f", min(abs(float(value)), 3.4028234663852886e38)))[0]
    bits = [each for each in (near - 1, near, near + 1) if 0 <= each < 0x7F800000]
    floats = {each: struct.unpack("<f", struct.pack("<I", each))[0] for each in bits}
    best = min(bits, key=lambda each: (abs(Fraction(floats[each]) - abs(value)), each & 1))
    return (-floats[best] if value < 0 else floats[best]) + 0.0


def uuid_text(token: str) -> str:
    value = text(token)
    try:
        if str(uuid.UUID(value)) == value.lower():
            return value.lower()
    except ValueError:
        pass
    raise Fault("format")


def binary(token: str) -> bytes:
    value = text(token)
    try:
        found = base64.b64decode(value.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Fault("format") from None
    if base64.b64encode(found).decode() != value:
        raise Fault("format")
    return found


def day(token: str) -> date:
    value = text(token)
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        raise Fault("format")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise Fault("format") from None


def clock(token: str) -> str:
    value = text(token)
    if not re.fullmatch(r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?", value):
        raise Fault("format")
    try:
        found = time.fromisoformat(value[:15])
    except ValueError:
        raise Fault("format") from None
    return found.strftime("%H:%M:%S") + (f".{found.microsecond:06}".rstrip("0") if found.microsecond else "")


def moment(token: str) -> datetime:
    if is_number(token):
        raise Fault("out_of_range" if abs(float(token)) >= 1e11 else "type")
    value = text(token)
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?", value):
        raise Fault("no_zone")
    found = re.fullmatch(r"(.{10}T[0-9:]{8})(\.[0-9]{1,9})?(Z|[+-]\d\d:\d\d)", value)
    try:
        if found is None:
            raise ValueError
        fraction = (found[2] or ".0")[:7]
        return datetime.fromisoformat(f"{found[1]}{fraction}{found[3]}").astimezone(UTC)
    except ValueError:
        raise Fault("bad_ts") from None


def boolean(token: str) -> bool:
    if token not in ("true", "false"):
        raise Fault("type")
    return token == "true"


def quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def around(*limits: int) -> tuple[str, ...]:
    return tuple(str(limit + step) for limit in limits for step in (-1, 0, 1))


def any_number(rng: Rng) -> str:
    whole = str(rng.randrange(10 ** rng.randrange(1, 25)))
    fraction = "." + "".join(rng.choices("0123456789", k=rng.randrange(1, 25))) if rng.random() < 0.7 else ""
    exponent = rng.choice(["", "", f"e{rng.randrange(-50, 50)}", f"E+{rng.randrange(9)}"])
    return rng.choice(["", "-"]) + whole + fraction + exponent


def any_double(rng: Rng) -> str:
    bits = rng.getrandbits(64)
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return repr(value) if value == value and abs(value) != float("inf") else "0.5"


def any_single(rng: Rng) -> str:
    """A number next to the middle of two floats, of which a double has no more digits."""
    low = rng.randrange(1, 0x7F000000)
    one, other = (Fraction(struct.unpack("<f", struct.pack("<I", each))[0]) for each in (low, low + 1))
    middle = (one + other) / 2 * (1 + Fraction(rng.choice([-1, 0, 1]), 10 ** rng.randrange(17, 25)))
    digits = Decimal(middle.numerator) / Decimal(middle.denominator)
    return f"{digits:.40e}" if rng.random() < 0.5 else any_number(rng)


def any_text(rng: Rng) -> str:
    return quoted("".join(rng.choices('ab"\\/é\U0001f6eb +=-:0', k=rng.randrange(12))))


def any_uuid(rng: Rng) -> str:
    found = str(uuid.UUID(int=rng.getrandbits(128)))
    return quoted(rng.choice([found, found.upper(), found.replace("-", "", 1), "{" + found + "}", found[:-1]]))


def any_base64(rng: Rng) -> str:
    found = base64.b64encode(rng.randbytes(rng.randrange(1, 60))).decode()
    place = rng.randrange(len(found))
    return quoted(rng.choice([found, found, found[:place] + rng.choice("A=+-_ ") + found[place + 1 :], found[:-1]]))


def any_day(rng: Rng) -> str:
    return quoted(f"{rng.randrange(10_000):04}-{rng.randrange(14):02}-{rng.randrange(33):02}")


def any_clock(rng: Rng) -> str:
    fraction = "." + "".join(rng.choices("01200", k=rng.randrange(1, 10))) if rng.random() < 0.6 else ""
    return quoted(f"{rng.randrange(26):02}:{rng.randrange(61):02}:{rng.randrange(61):02}{fraction}")


def any_moment(rng: Rng) -> str:
    at = datetime(1, 1, 3, tzinfo=UTC) + timedelta(microseconds=rng.randrange(63_000_000_000_000_000))
    return quoted(at.isoformat().replace("+00:00", rng.choice(["Z", "+00:00", "-05:30", ""])))


def any_integer(bits: int) -> Callable[[Rng], str]:
    return lambda rng: str(rng.randrange(-(2**bits), 2**bits))


def texts(words: str) -> tuple[str, ...]:
    return tuple(map(quoted, words.split()))


MOMENTS = "2013-02-29T00:00:00Z 2012-02-29T00:00:00.5Z 2012-02-29T00:00:00.1234567Z 1500-01-01T00:00:00Z"
WRONG = ("true", "1", "1.5", '"x"', '""', '"1"', "[]", "{}", '[1,{"a":"b"}]')
"""Tried for each type."""
NUMBERS = (
    *("0", "-0", "0.0", "-0.0", "1e2", "1E2", "1.0", "1e-400", "1e400", "-1e400", "0.1", "1e999999999", "100e-2"),
    *("12345678901234567890", "0.30000000000000004", "9007199254740993", "1.7976931348623157e308", "5e-324", "2e-324"),
    *("3.4028235e38", "3.4028236e38", "340282346638528859811704183484516925440", "1e-45", "7e-46", "16777217"),
)
CASES: Mapping[str, Case] = {
    "string": Case(text, ('"é"', '"\\u00e9"', '"\\ud83d\\udeeb"', '" "', '"a\\"b"'), any_text),
    "uuid": Case(uuid_text, texts("123e4567-e89b-12d3-a456-426614174000 123e4567e89b12d3a456426614174000"), any_uuid),
    "binary": Case(
        binary, ('"AA\\u003d="', *texts("AA== AB== AAA= AAB= AAAA AA A== A=== AA==AA== AA= = -_-_")), any_base64
    ),
    "integer": Case(integer(32), (*around(-(2**31), 2**31, 999_999_999), *NUMBERS), any_integer(33)),
    "bigint": Case(integer(64), (*around(-(2**63), 2**63, 10**18, 2**31), *NUMBERS), any_integer(65)),
    "smallint": Case(integer(16), (*around(-(2**15), 2**15, 9_999), *NUMBERS), any_integer(17)),
    "tinyint": Case(integer(8), (*around(-(2**7), 2**7, 99), *NUMBERS), any_integer(9)),
    "number": Case(decimal, ("999999.999", "1000000", "-999999.999", "0.0005", "0.001", "1e-3", *NUMBERS), any_number),
    "float": Case(single, NUMBERS, any_single),
    "double": Case(double, NUMBERS, any_double),
    "timestamp": Case(moment, ("100000000000", "99999999999", *texts(MOMENTS)), any_moment),
    "date": Case(day, texts("0001-01-01 0000-12-31 9999-12-31 1582-10-10 2012-02-29 2013-02-29 10000-01-01"), any_day),
    "time": Case(clock, texts("00:00:00 23:59:59.999999 23:59:60 24:00:00 10:10:10.100 10:10:10.0 10:10"), any_clock),
    "boolean": Case(boolean, ("true", "false"), lambda rng: rng.choice(["true", "false", "0", "1"])),
}


NESTED = {"object", "array", "map", "variant"}
"""Types whose values have others inside: tests/cases/test_nested_records.py."""


def test_every_type_has_a_case() -> None:
    assert set(CASES) | NESTED == set(COLUMN_TYPES)


def tokens() -> Iterator[tuple[str, str]]:
    rng = random.Random(parity_seed())
    for name, case in CASES.items():
        made = (case.generate(rng) for _ in range(RANDOM_TOKENS))
        yield from ((name, token) for token in dict.fromkeys([*case.tokens, *WRONG, *made]))


TOKENS = list(tokens())
CONTRACT = Contract(
    "d",
    "1",
    (Column("id", "string", required=True), *(Column(f"c_{name}", name, precision=9, scale=3) for name in CASES)),
    (),
    ("id",),
)


def record(name: str, token: str, space: str) -> bytes:
    return f'{{{space}"id":"x",{space}"c_{name}":{token}}}'.encode()


@dataclass(frozen=True)
class Read:
    """What one path made of a token: the value, or the first reason; and whether the record was in plain form."""

    value: Any
    fault: str | None
    is_plain: bool


@pytest.fixture(scope="module")
def by_path(spark: SparkSession) -> dict[str, list[Read]]:
    """What each path makes of the tokens, in their order."""
    found = {}
    for form, space in (("plain", ""), ("general", "  ")):
        rows = [("t", 0, n, ARRIVED, record(name, token, space), 0) for n, (name, token) in enumerate(TOKENS)]
        names = ["topic", "partition", "offset", "timestamp", "value", "_batch_id"]
        bronze = spark.createDataFrame(pl.DataFrame(rows, schema=names, orient="row").to_arrow())
        bronze = bronze.to(StructType.fromDDL(BRONZE))
        validator = compiled_validator(CONTRACT)
        reader = record_reader(spark, CONTRACT.columns, CONTRACT.limits)
        plain = [reader.isPlain(bytearray(row[4])) for row in rows]
        found[form] = reads(validator.validated(bronze).orderBy("_offset").toArrow(), plain)
        if form == "general":
            projection = row_projection(spark, bronze.schema, validator.validated)
            assert projection is not None
            found["few"] = reads(projection.of(bronze.orderBy("offset").toArrow()), plain)
    return found


def reads(rows: pa.Table, plain: list[bool]) -> list[Read]:
    found = []
    for (name, _), row, is_plain in zip(TOKENS, rows.to_pylist(), plain, strict=True):
        reasons = row["_reasons"]
        found.append(Read(row[f"c_{name}"], reasons[0]["rule"] if reasons else None, is_plain))
    return found


def expected(name: str, token: str) -> tuple[Any, str | None]:
    try:
        return CASES[name].read(token), None
    except Fault as fault:
        return None, str(fault)


@pytest.mark.parametrize("path", ["plain", "general", "few"])
@pytest.mark.parametrize("name", CASES)
def test_value_or_reason_is_that_of_python(name: str, path: str, by_path: dict[str, list[Read]]) -> None:
    wrong = []
    for (kind, token), read in zip(TOKENS, by_path[path], strict=True):
        value, fault = expected(kind, token)
        same = read.fault == fault and (fault is not None or (read.value == value and str(read.value) == str(value)))
        if kind == name and not same:
            wrong.append((token, read, value, fault))
    assert wrong == []


@pytest.mark.parametrize("name", CASES)
def test_some_values_of_each_type_are_plain(name: str, by_path: dict[str, list[Read]]) -> None:
    plain = [read for (kind, _), read in zip(TOKENS, by_path["plain"], strict=True) if kind == name and read.is_plain]
    assert [read for read in plain if read.fault is None]
    assert not any(read.is_plain for read in by_path["general"])


@pytest.mark.parametrize("name", [name for name, kind in COLUMN_TYPES.items() if not kind.no_key])
def test_audit_reads_the_same_value(name: str) -> None:
    kind, column = COLUMN_TYPES[name], Column("c", name, precision=9, scale=3)
    values = [(token, found) for each, token in TOKENS if each == name for found in [expected(name, token)]]
    accepted = [(f'{{"c":{token}}}', value) for token, (value, fault) in values if fault is None]
    database = memory_database()
    sql = kind.duckdb_value(payload_member("c"), kind.duckdb_type(column))
    database.register("payloads", pa.table({"payload": [payload for payload, _ in accepted]}))
    found = database.sql(f"select {sql} as v, typeof({sql}) as kind from payloads").fetchall()
    database.close()
    assert [value for value, _ in found] == [value for _, value in accepted]
    assert {kind for _, kind in found} == {kind.duckdb_type(column)}
