"""Records of every form for one contract; `json_reading.py` says what each of them is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from include.declare.contract import Column

ARRIVED = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LONG = timedelta(days=365 * 8000)
COLUMNS = (
    Column("id", "string", required=True, min_length=1, max_length=40),
    Column("at", "timestamp", required=True),
    Column("n", "integer"),
    Column("m", "integer", minimum=-5, maximum=1_000_000_000),
    Column("amount", "number", precision=18, scale=6),
    Column("big", "number", precision=38, scale=0, minimum=Decimal("-0.5"), maximum=Decimal("1E+37")),
    Column("wide", "number", precision=38, scale=6, minimum=Decimal("-1E-12")),
    Column("tiny", "number", precision=3, scale=3, maximum=Decimal("0.9995")),
    Column("price", "number", precision=9, scale=2, minimum=Decimal("0.01"), maximum=Decimal("9999.995")),
    Column("name", "string", pattern="^[A-Za-z ]*$", physical_name="fullName"),
    Column("code", "string", values=("A", "B 1", "é")),
    Column("note", "string", max_length=300),
    Column("ok", "boolean"),
    Column(
        "seen",
        "timestamp",
        minimum=datetime(1200, 1, 1, tzinfo=UTC),
        maximum=datetime(1582, 10, 14, 23, 59, 59, 999999, UTC),
    ),
    Column("due", "timestamp", future=LONG, past=timedelta(days=365)),
)
BOUNDS = [Decimal(10) ** (c.precision - c.scale) for c in COLUMNS if c.type == "number"]
NO_NUMBERS = ["01", "1.", ".5", "+1", "1e", "1e+", "-", "--1", "0x1f", "1_0", "NaN", "Infinity", "-Infinity", "-NaN"]
NO_NUMBERS += ["٣", "1,5", "n", "s", "tru", "True", "nul", "undefined", "'a'", "00", "-01", "1.e3", "1e1.5"]
CHARACTERS = [
    "a",
    "B",
    " ",
    "1",
    "é",
    "e\u0301",
    "\U0001f6eb",
    "\u2028",
    "\u0080",
    "/",
    "\\",
    '"',
    "\t",
    "\n",
    "ß",
    "K",
]
PLAIN_TEXTS = ("a", "Ab", "x y", "é", "\U0001f6eb", "a" * 41, "", "\u0080")
BAD_STRINGS = ['"\\x"', '"\\u12G4"', '"\\u12"', '"a', '"a\nb"', '"\x00"', '"\x7f"', '"\\u007f"', '"\\u0001"', '"\\b"']
BAD_STRINGS += [
    '"\\ud83d"',
    '"\\udeeb\\ud83d"',
    '"\\ud83d\\ud83d\\udeeb"',
    '"\\ud83dx"',
    '"\\u0000"',
    '"\\',
    '"\\ud83d\\n"',
]
YEARS = [0, 1, 2, 4, 100, 400, 1199, 1200, 1500, 1581, 1582, 1583, 1600, 1700, 1899, 1900, 1969, 1970, 1972, 2000, 2023]
YEARS += [2024, 2025, 2026, 2027, 2100, 2400, 9998, 9999, 10000, 123456]
ZONES = [
    "Z",
    "Z",
    "Z",
    "+00:00",
    "-00:00",
    "+05:30",
    "-03:30",
    "+14:00",
    "-12:00",
    "+18:00",
    "-18:00",
    "+18:01",
    "+19:00",
]
ZONES += ["", "z", "+0530", "+05", "-05:60", "+23:59", " Z", "UTC", "+1:00"]
KEYS = ["x", "X", "y", "é", "a b", "", "\\", "id", "k" * 70]


def record(rng: random.Random) -> bytes:
    """Return a record: mostly an object with the contract's fields, each often of its type."""
    if rng.random() < 0.3:
        return mutated(rng, plain_record(rng))
    style, wild = rng.choice(["", "", "dumps", "spaces"]), rng.choice([0, 0, 0.07, 0.07, 0.5])
    given = [column for column in COLUMNS if rng.random() < (1 - 0.02 * (wild > 0) if column.required else 0.7)]
    members = [(c.member, own_value(rng, c) if rng.random() < wild else fitting_value(rng, c)) for c in given]
    if rng.random() < 0.2:
        name = rng.choice([*KEYS, "Name", "other", "k" * 60_000 if rng.random() < 0.01 else "ID"])
        members.append((name, any_value(rng)))
    if members and rng.random() < 0.03:
        members.append((rng.choice(members)[0], any_value(rng)))
    if rng.random() < 0.3:
        rng.shuffle(members)
    key = string if rng.random() < 0.1 else plain_string
    text = joined(rng, style, "{}", [f"{key(rng, name)}{colon(rng, style)}{value}" for name, value in members])
    return mutated(rng, text.encode("utf-8", "surrogatepass"))


def plain_record(rng: random.Random) -> bytes:
    """Return a record as most producers write it; some values break a bound."""
    members = [(c.member, PLAIN[c.type](rng, c)) for c in COLUMNS if c.required or rng.random() < 0.6]
    style = rng.choice(["", "dumps"])
    text = joined(rng, style, "{}", [f'"{name}"{colon(rng, style)}{value}' for name, value in members])
    return text.encode()


def mutated(rng: random.Random, text: bytes) -> bytes:
    if rng.random() > 0.06:
        return text
    at = rng.randrange(len(text) + 1)
    ways: list[Callable[[], bytes]] = [
        lambda: text[:at],
        lambda: text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :],
        lambda: text[:at] + rng.choice([b",", b"}", b"]", b'"', b"\\", b"1", b" ", b"\xed\xa0\x80"]) + text[at:],
        lambda: text + rng.choice([b" ", b"x", b"{}", b"}", b"\x00", b"\n"]),
        lambda: rng.choice([b"\xef\xbb\xbf", b" ", b"\xff\xfe", b"\xc2\xa0"]) + text,
        lambda: rng.choice([b"", b" \n", b"[1]", b"1e5", b'"a"', b"null", b"NaN", b"[] []", b"-"]),
        lambda: b'{"a":' + b"[" * (depth := rng.randrange(30, 34)) + b"]" * depth + b"}",
        lambda: text[:-1] + b',"a":' + b"[" * (depth := rng.randrange(29, 34)) + b"]" * depth + b"}",
    ]
    return rng.choice(ways)()


def own_value(rng: random.Random, column: Column) -> str:
    if rng.random() < 0.15:
        return any_value(rng)
    return OWN[column.type](rng, column)


def any_value(rng: random.Random, depth: int = 0) -> str:
    kinds: list[Callable[[], str]] = [
        lambda: rng.choice(["null", "true", "false"]),
        lambda: number(rng),
        lambda: string(rng, words(rng)),
        lambda: f'"{time(rng)}"',
        lambda: rng.choice(NO_NUMBERS if rng.random() < 0.1 else ["0", "-0", "1.0"]),
        lambda: rng.choice(BAD_STRINGS) if rng.random() < 0.1 else '"12"',
    ]
    if depth < 3:
        kinds += [lambda: container(rng, depth), lambda: container(rng, depth)]
    return rng.choice(kinds)()


def container(rng: random.Random, depth: int) -> str:
    style = rng.choice(["", "dumps", "spaces"])
    items = [any_value(rng, depth + 1) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    if rng.random() < 0.5:
        return joined(rng, style, "[]", items)
    keys = [rng.choice(KEYS[:2] if rng.random() < 0.3 else KEYS) for _ in items]
    return joined(
        rng, style, "{}", [f"{string(rng, k)}{colon(rng, style)}{v}" for k, v in zip(keys, items, strict=True)]
    )


def space(rng: random.Random, style: str) -> str:
    return rng.choice(["", "", " ", "\n", "\t", "\r\n", "  "]) if style == "spaces" else ""


def colon(rng: random.Random, style: str) -> str:
    return ": " if style == "dumps" else f"{space(rng, style)}:{space(rng, style)}"


def joined(rng: random.Random, style: str, ends: str, items: Sequence[str]) -> str:
    separator = ", " if style == "dumps" else f"{space(rng, style)},{space(rng, style)}"
    return f"{ends[0]}{space(rng, style)}{separator.join(items)}{space(rng, style)}{ends[1]}"


def plain_string(_: random.Random, text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def string(rng: random.Random, text: str) -> str:
    """Return the text as JSON, each of its characters as itself or as one of its escapes."""
    share = rng.choice([0, 0, 0.3, 1])

    def written(character: str) -> str:
        if rng.random() < share:
            units = character.encode("utf-16-be", "surrogatepass").hex()
            units = units.upper() if rng.random() < 0.5 else units
            return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        return "\\/" if character == "/" and rng.random() < 0.5 else json.dumps(character, ensure_ascii=False)[1:-1]

    return '"' + "".join(map(written, text)) + '"'


def words(rng: random.Random) -> str:
    if rng.random() < 0.05:
        return rng.choice("aé") * rng.choice([39, 40, 41, 299, 300, 301, 70_000])
    return "".join(rng.choice(CHARACTERS) for _ in range(rng.choice([0, 1, 2, 5, 12])))


def text_value(rng: random.Random, column: Column) -> str:
    if column.values and rng.random() < 0.8:
        return string(rng, rng.choice(column.values))
    if column.pattern and rng.random() < 0.8:
        return string(rng, "".join(rng.choice("abZ ") for _ in range(rng.randrange(6))))
    return string(rng, words(rng)) if rng.random() < 0.95 else rng.choice(BAD_STRINGS)


def digits(rng: random.Random, most: int) -> str:
    size = rng.randrange(1, most + 1)
    return rng.choice("123456789") + "".join(rng.choice("0123456789099") for _ in range(size - 1))


def number(rng: random.Random) -> str:
    sign, roll = rng.choice(["", "", "-"]), rng.random()
    if roll < 0.1:
        return sign + str(rng.choice([2**31 - 1, 2**31, 2**63, 10**9, 999_999_999, 0, 5, 6, 10**11, 10**38]))
    if roll < 0.25:
        bound = rng.choice(BOUNDS)
        last = rng.choice(["", ".0", ".5", ".000000", ".0000001", "e0", "e-1", "0e-1", f"e-{rng.randrange(50)}"])
        return f"{sign}{int(bound) - rng.choice([0, 1])}{last}"
    if roll < 0.3:
        return sign + rng.choice(["9" * 1000, "9" * 1001, "0." + "0" * 600 + "1", "1" * 600 + "." + "2" * 600])
    if roll < 0.4:
        return sign + "9" * rng.randrange(1, 40) + "." + "9" * rng.randrange(1, 50)
    whole = rng.choice(["0", digits(rng, 6), digits(rng, 12), digits(rng, 45)])
    small = f".{'0' * rng.randrange(9)}{digits(rng, 40)}"
    fraction = rng.choice(["", "", f".{digits(rng, 6)}", small, ".50000", ".000"])
    powers = [str(rng.randrange(60)), "0", "00", "400", "007", "99999999999", "2147483648", str(rng.randrange(9))]
    power = rng.choice(["", "", f"{rng.choice('eE')}{rng.choice(['', '+', '-'])}{rng.choice(powers)}"])
    return f"{sign}{whole}{fraction}{power}"


def number_value(rng: random.Random, column: Column) -> str:
    roll = rng.random()
    if roll < 0.04:
        return rng.choice(NO_NUMBERS)
    return number(rng) if roll < 0.6 else fitting_number(rng, column)


def fitting_value(rng: random.Random, column: Column) -> str:
    """Return a value that keeps the contract, if no bound of the column is near."""
    if not column.required and rng.random() < 0.05:
        return "null"
    return FITTING[column.type](rng, column)


def fitting_text(rng: random.Random, column: Column) -> str:
    if column.values:
        return string(rng, rng.choice(column.values))
    signs: Sequence[str] = "abZ " if column.pattern else CHARACTERS
    return string(rng, "".join(rng.choice(signs) for _ in range(rng.randrange(1, 9))))


def fitting_number(rng: random.Random, column: Column) -> str:
    if column.type == "integer":
        return str(rng.choice([0, 7, 10**9, rng.randrange(10**9)]))
    size = rng.randrange(1, column.precision - 1) if column.name in ("amount", "big", "wide") else 3
    value, scale = (
        rng.randrange(1, 10**size),
        column.scale if column.name == "tiny" else min(column.scale, rng.randrange(7)),
    )
    sign = rng.choice(["", "", "-"]) if column.name in ("amount", "tiny") else ""
    if rng.random() < 0.5:
        return sign + f"{Decimal(value).scaleb(-scale):f}" + ("" if rng.random() < 0.8 or not scale else "00")
    zeros = rng.choice([0, 0, 1, 40])
    return f"{sign}{value}{'0' * zeros}{rng.choice('eE')}-{scale + zeros}"


SPANS = {
    "at": (datetime(1, 1, 2, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)),
    "seen": (datetime(1200, 1, 1, tzinfo=UTC), datetime(1582, 10, 14, tzinfo=UTC)),
    "due": (datetime(2025, 12, 1, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)),
}


def fitting_time(rng: random.Random, column: Column) -> str:
    low, high = SPANS[column.name]
    seconds = rng.choice([0, 1, rng.random()]) * (high - low).total_seconds() * 0.999
    found = low + timedelta(seconds=86_400 + int(seconds), microseconds=rng.choice([0, 0, 1, 999_999]))
    if rng.random() < 0.6:
        zone = "Z"
    else:
        zone = rng.choice([*ZONES[3:9], f"{rng.choice('+-')}{rng.randrange(14):02d}:{rng.randrange(60):02d}"])
    more = "" if not found.microsecond else "".join(rng.choice("0123456789") for _ in range(rng.randrange(4)))
    return string(rng, found.isoformat().removesuffix("+00:00") + more + zone)


def time(rng: random.Random) -> str:
    if rng.random() < 0.15:
        near = ARRIVED + timedelta(minutes=rng.choice([9, 10, 11, -1]), microseconds=rng.choice([-1, 0, 1]))
        return near.isoformat().replace("+00:00", "Z")
    rare = rng.random() < 0.1
    year = rng.choice(YEARS) if rng.random() < 0.7 else rng.randrange(10_000)
    days = [(1, 1), (1, 2), (2, 28), (2, 29), (3, 1), (12, 31), (10, 14), (10, 15)]
    day = (rng.randrange(14), rng.randrange(33)) if rare else rng.choice(days)
    clock = [rng.randrange(25), rng.randrange(61), rng.randrange(61)] if rare else [rng.choice([0, 12, 23]), 59, 59]
    size = rng.choice([0, 0, 1, 3, 6, 7, 9, 10 if rare else 2])
    fraction = "." + "".join(rng.choice("0123456789") for _ in range(size)) if size else ""
    zone = rng.choice(ZONES) if rng.random() < 0.4 else "Z"
    mark = rng.choice(["t", " ", "T"]) if rare else "T"
    return f"{year:04d}-{day[0]:02d}-{day[1]:02d}{mark}{clock[0]:02d}:{clock[1]:02d}:{clock[2]:02d}{fraction}{zone}"


OWN: dict[str, Callable[[random.Random, Column], str]] = {
    "string": text_value,
    "integer": number_value,
    "number": number_value,
    "boolean": lambda rng, _: rng.choice(["true", "false"]),
    "timestamp": lambda rng, _: string(rng, time(rng)),
}


FITTING: dict[str, Callable[[random.Random, Column], str]] = {
    "string": fitting_text,
    "integer": fitting_number,
    "number": fitting_number,
    "boolean": OWN["boolean"],
    "timestamp": fitting_time,
}


PLAIN: dict[str, Callable[[random.Random, Column], str]] = {
    "string": lambda rng, c: json.dumps(
        rng.choice(c.values if c.values and rng.random() < 0.9 else PLAIN_TEXTS), ensure_ascii=False
    ),
    "integer": lambda rng, _: str(rng.choice([0, -5, 7, 999_999_999, 1_000_000_000])),
    "number": lambda rng, c: f"{Decimal(rng.randrange(1, 10 ** max(1, c.precision - 3))).scaleb(-c.scale):f}",
    "boolean": lambda rng, _: rng.choice(["true", "false", "null"]),
    "timestamp": lambda rng, c: fitting_time(rng, c) if rng.random() < 0.85 else f'"{time(rng)}"',
}
