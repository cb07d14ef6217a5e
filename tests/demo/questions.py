"""The demo's questions about the year, answered from gold in SQL, and its results: rejected records scored against the
manifest of injected faults, and the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import polars as pl

from demo.feed import manifest_path, read_ends
from include.audit.balance import DatasetAudit
from include.audit.kafka import open_topic
from include.audit.run import audit_dataset, record_outcomes
from include.ground.settings import Settings
from include.producers.manifest import Score, score
from include.producers.sending import Run
from include.read.published_sql import QueryResult, run_query
from include.read.published_tables import PinnedTables


@dataclass(frozen=True)
class Question:
    """A question (`words`) and its SQL over published tables."""

    words: str
    sql: str


WORST_AIRLINE = Question(
    "Which airline has the longest departure delay? (10,000 departures or more)",
    """\
SELECT carrier, sum(departed) AS departures,
       round(sum(departure_delay_minutes) / sum(departed), 1) AS average_delay,
       round(100 * sum(delayed) / sum(departed), 1) AS percent_over_15_minutes
FROM gold.carrier_hours
GROUP BY carrier HAVING sum(departed) >= 10000
ORDER BY average_delay DESC LIMIT 5""",
)
WORST_DAY = Question(
    "Which days had the most cancellations? (days in UTC)",
    """\
SELECT day, sum(cancelled) AS cancelled, sum(scheduled) AS scheduled,
       round(100 * sum(cancelled) / nullif(sum(scheduled), 0), 1) AS percent
FROM gold.route_days
GROUP BY day ORDER BY cancelled DESC, day LIMIT 3""",
)
WORST_DEPARTURES = Question(
    "Which ten departures were the latest?",
    """\
SELECT s.carrier || ' ' || s.flight AS flight, s.origin, s.dest,
       s.scheduled_departure, w.departure_delay AS minutes,
       round(w.departure_delay / 60, 1) AS hours
FROM gold.worst_delays w JOIN gold.flight_status s USING (flight_id)
ORDER BY minutes DESC, flight_id LIMIT 10""",
)
LATEST_DESTINATION = Question(
    "Which destination has the longest arrival delay? (2,000 arrivals or more)",
    """\
SELECT dest, sum(arrived) AS arrivals,
       round(sum(arrival_delay_minutes) / sum(arrived), 1) AS average_delay,
       CAST(round(sum(distance_miles) / sum(departed)) AS INTEGER) AS miles
FROM gold.route_days
GROUP BY dest HAVING sum(arrived) >= 2000
ORDER BY average_delay DESC LIMIT 5""",
)
RAIN = Question(
    "Does rain delay flights? Two streams in one query (very wet: half an inch a day)",
    """\
WITH flown AS (
  SELECT CAST(hour AS DATE) AS day, origin, sum(scheduled) AS scheduled,
         sum(departed) AS departed, sum(cancelled) AS cancelled,
         sum(departure_delay_minutes) AS minutes
  FROM gold.carrier_hours GROUP BY ALL)
SELECT CASE WHEN rain >= 0.5 THEN 'very wet'
            WHEN rain > 0 THEN 'some rain' ELSE 'dry' END AS weather,
       count(*) AS airport_days,
       round(sum(minutes) / sum(departed), 1) AS average_delay,
       round(100 * sum(cancelled) / sum(scheduled), 1) AS percent_cancelled
FROM flown f JOIN gold.weather_days w ON w.station = f.origin AND w.day = f.day
GROUP BY 1 HAVING sum(departed) > 0 AND sum(scheduled) > 0
ORDER BY average_delay DESC""",
)
QUESTIONS = (WORST_AIRLINE, WORST_DAY, WORST_DEPARTURES, LATEST_DESTINATION)


def answer_questions(reading: PinnedTables) -> list[tuple[Question, QueryResult]]:
    """Return each question with its answer, all from one publication; about rain only with weather in gold."""
    questions = (*QUESTIONS, RAIN) if "gold.weather_days" in reading.tables else QUESTIONS
    return [(question, run_query(reading, question.sql)) for question in questions]


SCORED = ("_topic", "_partition", "_offset", "disposition", "reasons")


def scores(settings: Settings, runs: Sequence[Run], reading: PinnedTables) -> dict[str, Score]:
    """Return the score of each run by feed: its manifest against the records rejected from it."""
    return {run.feed.name: _score_run(settings, run, reading) for run in runs}


def _score_run(settings: Settings, run: Run, reading: PinnedTables) -> Score:
    rejected = reading.read(f"rejected.{run.feed.name}", columns=SCORED).collect()
    return score(manifest_path(settings, run), rejected_of_run(rejected, read_ends(settings, run)))


def rejected_of_run(rejected: pl.DataFrame, ends: Mapping[int, int]) -> pl.DataFrame:
    """Return the rejected records that the demo sent; records sent later are not scored."""
    own = [(pl.col("_partition") == part) & (pl.col("_offset") < end) for part, end in ends.items()]
    return rejected.filter(pl.any_horizontal(own)) if own else rejected.clear()


def audits(
    settings: Settings, runs: Sequence[Run], bootstrap: str, progress: Callable[[str], None]
) -> list[DatasetAudit]:
    """Return the audit of each dataset of the demo; `progress` receives status texts."""
    opener = partial(open_topic, bootstrap, jars=settings.jars)
    found = [audit_dataset(settings, run.feed.name, opener, progress) for run in runs]
    record_outcomes(settings, found, datetime.now(UTC))
    return found
