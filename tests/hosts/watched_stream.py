"""Waits for a stream as Airflow's triggerer does, and prints how the wait ended, as JSON.

    python watched_stream.py DATASET REQUESTER SINCE GRACE_SECONDS [release]

With `release` it does at once what the triggerer does when a person has stopped the run.
"""

from __future__ import annotations

import asyncio
import json
import sys

from include.airflow.triggers import StreamWatch


async def ended(watch: StreamWatch) -> object:
    """Return what the trigger fires."""
    async for event in watch.run():
        return event.payload
    raise AssertionError("the trigger ended without an event")


def main(dataset: str, requester: str, since: str, grace: str, *what: str) -> None:
    """Wait, or release the stream."""
    watch = StreamWatch(dataset, requester, since, lag_seconds=86400, grace_seconds=float(grace))
    if what:
        watch.release()
    else:
        print(json.dumps(asyncio.run(ended(watch))))


if __name__ == "__main__":
    main(*sys.argv[1:])
