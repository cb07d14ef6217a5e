"""Waits for a stream on this host's copy of the state folder, and prints how the wait ended, as JSON.

    python watched_stream.py DATASET REQUESTER SINCE GRACE_SECONDS [release]

With `release` it does at once what the API does for Airflow's triggerer when a person has stopped the run.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from datetime import datetime

from include.ground.settings import load_settings
from include.observe.health import LagLimit, ServiceLevelMonitor, observer_of
from include.state.streams import release_of_run


def ended(dataset: str, grace: float) -> object:
    """Return how the watch ends."""
    watch, monitor = observer_of(load_settings(), dataset), ServiceLevelMonitor(LagLimit(86400, grace))
    while (verdict := monitor.evaluate(watch.observe(), time.monotonic())) is None:
        time.sleep(1.0)
    return asdict(verdict)


def main(dataset: str, requester: str, since: str, grace: str, *what: str) -> None:
    """Wait, or release the stream."""
    if what:
        release_of_run(load_settings(), dataset, requester, datetime.fromisoformat(since))
    else:
        print(json.dumps(ended(dataset, float(grace))))


if __name__ == "__main__":
    main(*sys.argv[1:])
