"""Kafka's retention overtakes a stream that is down: refused, then continued without the records, on account."""

from __future__ import annotations

import json
import signal

import pytest
from recovery_site import Site

from include.clients.kafka import delete_records_before, log_end_offsets

REFUSED = 2


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_expired_records_are_skipped_only_on_request_and_stay_on_account(site: Site) -> None:
    driver = site.start_driver()
    site.send(60)
    site.wait_published(driver)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    read = {int(p): end for p, end in site.publication()["offsets"].items()}
    site.send(60)
    lost = {p: end - 2 for p, end in log_end_offsets(site.bootstrap, site.dataset).items()}
    delete_records_before(site.bootstrap, site.dataset, lost)

    refused = site.start_driver()
    assert refused.wait() == REFUSED
    assert f"headrace repair {site.dataset} --accept-loss" in refused.log_text()
    assert site.command("repair", site.dataset, "--yes").returncode == REFUSED
    repaired = site.command("repair", site.dataset, "--yes", "--accept-loss")
    assert repaired.returncode == 0, repaired.stderr

    successor = site.start_driver()
    site.wait_state("running", successor)
    site.wait_published(successor)
    assert f"partition 0 offsets [{read[0]}, {lost[0]})" in site.status()["event"]
    audit = site.command("audit", "--json", "--dataset", site.dataset)
    assert audit.returncode == 0, audit.stdout
    (found,) = json.loads(audit.stdout)["datasets"]
    assert {each["partition"]: (each["start"], each["end"]) for each in found["lost"]} == {
        p: (read[p], end) for p, end in lost.items()
    }
