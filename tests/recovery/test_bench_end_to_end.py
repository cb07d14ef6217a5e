"""The benchmarks with real processes: a drain of the platform and of a peer, both with every row right."""

from __future__ import annotations

import pytest
from benchmarks.peer_run import PeerOptions, measured_peers

PEER = "polars, delta-rs"
pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]


def test_platform_and_peer_drain_the_same_events_into_the_same_tables() -> None:
    found = list(measured_peers(PeerOptions((PEER,), runs=1, warm_up=2_000, events=2_000, keep=False), print))
    assert [each.system for each in found] == ["headrace", PEER]
    assert len({each.setting for each in found}) == 1
    for each in found:
        assert each.problems == ()
        assert each.figures["events/s"] > 0
        assert each.figures["CPU s/M, all"] > 0
    assert found[1].figures["CPU s/M, JVM"] == 0
