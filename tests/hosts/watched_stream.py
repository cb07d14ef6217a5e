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
from include.observe.ledger_reader import open_reader
from include.serve.health import current_breaches, end_of_watch, stream_health
from include.state.streams import release_of_run


def ended(dataset: str, grace: float) -> object:
    """Return how the watch ends."""
    settings, began = load_settings(), dict[str, float]()
    ledger = open_reader(settings)
    while True:
        health, now = stream_health(settings, dataset, ledger), time.monotonic()
        if (over := end_of_watch(health)) is not None:
            return asdict(over)
        breaches = current_breaches(health, 86400)
        began = {kind: began.get(kind, now) for kind in breaches}
        for kind, since in began.items():
            if now - since > grace:
                return {"outcome": "breached", "why": f"{breaches[kind]}, for more than {grace:g} s"}
        time.sleep(1.0)


def main(dataset: str, requester: str, since: str, grace: str, *what: str) -> None:
    """Wait, or release the stream."""
    if what:
        release_of_run(load_settings(), dataset, requester, datetime.fromisoformat(since))
    else:
        print(json.dumps(ended(dataset, float(grace))))


if __name__ == "__main__":
    main(*sys.argv[1:])
