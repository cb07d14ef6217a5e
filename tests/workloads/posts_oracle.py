"""What the gold tables of `posts` must hold, from the records alone, in plain Python."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from workloads.oracle_rows import Expected, Row

MINUTE, GAP = timedelta(minutes=1), timedelta(minutes=5)


def expected_post_tables(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table."""
    words, tags = Counter[tuple[datetime, str]](), defaultdict[datetime, Counter[str]](Counter)
    authors = defaultdict[str, list[tuple[datetime, int]]](list)
    for post in map(json.loads, records):
        at, parts = datetime.fromisoformat(post["posted_at"]), post["text"].split(" ")
        plain = [part for part in parts if not part.startswith("#")]
        words.update((at.replace(minute=0, second=0, microsecond=0), word) for word in plain)
        newest = at.replace(second=0, microsecond=0)
        for since in (newest - n * MINUTE for n in range(10)):
            tags[since].update(part for part in parts if part.startswith("#"))
        authors[post["author"]].append((at, len(plain)))
    return {
        "word_hours": [{"hour": hour, "word": word, "uses": uses} for (hour, word), uses in words.items()],
        "hashtag_trends": [
            {"since": since, "rank": rank, "tag": tag, "uses": uses}
            for since, counts in tags.items()
            for rank, (tag, uses) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10], 1)
        ],
        "author_sessions": [row for author, posts in authors.items() for row in _sessions(author, sorted(posts))],
    }


def _sessions(author: str, posts: list[tuple[datetime, int]]) -> list[Row]:
    found: list[Row] = []
    for at, words in posts:
        if not found or at - found[-1]["until"] > GAP:
            found.append({"author": author, "since": at, "until": at, "posts": 0, "words": 0})
        last = found[-1]
        last |= {"until": at, "posts": last["posts"] + 1, "words": last["words"] + words}
    return found
