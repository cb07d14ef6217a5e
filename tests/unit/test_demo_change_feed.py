"""The flights that `demo-change` sends in the background end with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from include.ground.settings import CLONE

DEMO = """
import time

from demo.change import live_feed
from include.ground.settings import load_settings

with live_feed(load_settings()):
    print("sending", flush=True)
    time.sleep(60)
"""


def test_feed_ends_with_a_killed_demo(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its broker accepts connections and never answers, so the feed waits."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kafka = f"127.0.0.1:{silent.getsockname()[1]}"
        environment = {**os.environ, "HEADRACE_STATE": str(tmp_path), "HEADRACE_KAFKA_BOOTSTRAP": kafka}
        demo = subprocess.Popen([sys.executable, "-c", DEMO], cwd=CLONE, env=environment, stdout=subprocess.PIPE)
        request.addfinalizer(demo.kill)
        assert demo.stdout is not None
        assert demo.stdout.readline() == b"sending\n"
        (feed,) = psutil.Process(demo.pid).children()
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            demo.kill()
            demo.wait()
            until = time.monotonic() + 10
            # Who adopts the feed may leave it as a zombie for a while.
            while feed.is_running() and feed.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < until, "the feed goes on without its demo"
                time.sleep(0.05)
