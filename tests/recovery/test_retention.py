"""Kafka's retention overtakes a stream that is down: refused, then continued without the records, on account."""

from __future__ import annotations

import json
import signal

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from recovery_site import Site

from include.ground.kafka import delete_records_before, ensure_topic, log_end_offsets, topic_concerns
from include.ground.settings import Settings
from include.observe.doctor import Verdict, check_kafka
from include.state.run_files import bootstrap_servers

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


@pytest.mark.extended
def test_topic_settings_that_can_lose_records_are_named(broker_settings: Settings) -> None:
    bootstrap = bootstrap_servers(broker_settings)
    config = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "7200000",
        "retention.bytes": "5000000",
        "message.timestamp.type": "CreateTime",
    }
    # It must outlive the result.
    owner = AdminClient({"bootstrap.servers": bootstrap})
    owner.create_topics([NewTopic("foreign", 2, 1, config=config)])["foreign"].result(30)
    found = topic_concerns(bootstrap, "foreign")
    assert [concern.split(" ")[0] for concern in found] == [
        "retention.ms",
        "retention.bytes",
        "message.timestamp.type",
        "cleanup.policy",
        "a",
    ]
    assert "2 h" in found[0]
    assert "5,000,000" in found[1]
    ensure_topic(bootstrap, "ours", 2)
    assert [concern.split(":")[0] for concern in topic_concerns(bootstrap, "ours")] == ["a partition has 1 replica"]


@pytest.mark.extended
def test_doctor_names_topics_of_another_kafka_that_can_lose_records(site: Site) -> None:
    ensure_topic(site.bootstrap, site.dataset, 2)
    found = check_kafka(site.settings.model_copy(update={"kafka_bootstrap": site.bootstrap}))
    assert (found[0].check, found[0].verdict) == ("kafka", Verdict.OK)
    own = [each for each in found if each.check == f"topic {site.dataset}"]
    assert [(each.verdict, each.found.split(":")[0]) for each in own] == [(Verdict.WARN, "a partition has 1 replica")]
    assert check_kafka(site.settings) == []


@pytest.mark.extended
def test_doctor_names_a_kafka_that_does_not_answer(broker_settings: Settings) -> None:
    (found,) = check_kafka(broker_settings.model_copy(update={"kafka_bootstrap": "127.0.0.1:9"}))
    assert (found.check, found.verdict) == ("kafka", Verdict.FAIL)
    assert "127.0.0.1:9" in found.found
