"""Short texts with hashtags: words and tags are drawn by Zipf's law from a fixed vocabulary."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import polars as pl

from include.producers.feed import Feed
from workloads.generated_events import event_frame, iso

EVENTS = 20_000
START = datetime(2026, 3, 2, 8, tzinfo=UTC)
BETWEEN = timedelta(milliseconds=360)
SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te")
TAGS = tuple(
    f"#{name}" for name in ("kafka", "spark", "delta", "airflow", "python", "duckdb", "polars", "sql", "rust", "jvm")
)
SEED = 2


def vocabulary() -> list[str]:
    """Return 288 words of two or three syllables."""
    two = [a + b for a in SYLLABLES for b in SYLLABLES]
    return two + [word + SYLLABLES[n % len(SYLLABLES)] for n, word in enumerate(two)]


def post_frame(shift: timedelta = timedelta(0)) -> pl.DataFrame:
    """Return the posts moved by `shift`; columns as in `Feed.frame`."""
    numbers, words = random.Random(SEED), vocabulary()
    of_words = list(accumulate(1 / (rank + 1) for rank in range(len(words))))
    of_tags = list(accumulate(1 / (rank + 1) for rank in range(len(TAGS))))
    rows = []
    for number in range(EVENTS):
        at = START + shift + number * BETWEEN
        text = numbers.choices(words, cum_weights=of_words, k=numbers.randrange(3, 12))
        tags = numbers.choices(TAGS, cum_weights=of_tags, k=numbers.randrange(3))
        author, post_id = f"author-{numbers.randrange(500)}", f"{number}/{iso(at)}"
        event = {"post_id": post_id, "author": author, "posted_at": iso(at), "text": " ".join([*text, *tags])}
        rows.append((author, post_id, at, event))
    return event_frame(rows)


POSTS = Feed(
    name="posts",
    topic="posts",
    source="20,000 generated posts of two hours",
    id_field="post_id",
    time_field="posted_at",
    frame=post_frame,
    wrong_values=(),
)
