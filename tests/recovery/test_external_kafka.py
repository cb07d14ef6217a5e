"""A Kafka that is not Headrace's own: TLS, SCRAM and access lists reach every client; it is left running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recovery_site import FAST_START_JVM, TEMPLATE

from include.ground.settings import CLONE, Settings
from infra.kafka.secured_broker import SecuredBroker, start_secured_broker

TOPIC = "meter"
READINGS = "\n".join(
    json.dumps(
        {"event_id": f"e{n}", "device": f"d{n % 3}", "litres": n % 9, "read_at": f"2024-02-10T10:{n % 60:02}:00Z"}
    )
    for n in range(300)
)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A secured broker whose user may use one topic."""
    settings = Settings(state=tmp_path_factory.mktemp("broker"))
    broker = start_secured_broker(settings.state / "kafka", settings, [TOPIC])
    yield broker
    broker.process.terminate()
    broker.process.wait(60)


class User:
    """A user's terminal: a state folder, and the variables of the secured broker."""

    def __init__(self, folder: Path, broker: SecuredBroker) -> None:
        datasets = folder / "datasets"
        (datasets / TOPIC).mkdir(parents=True)
        for file in TEMPLATE.rglob("*"):
            if file.is_file() and "cases" not in file.parts and "__pycache__" not in file.parts:
                copy = datasets / TOPIC / file.relative_to(TEMPLATE)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
        own = {"HEADRACE_STATE": str(folder / "state"), "HEADRACE_DATASETS": str(datasets)}
        memory = {"HEADRACE_DRIVER_MEMORY": "1g", "HEADRACE_DRIVER_JVM": FAST_START_JVM}
        self.environment = {**os.environ, **own, **memory, **broker.settings(), "PYTHONPATH": str(CLONE)}

    def run(self, *arguments: str, expected: int = 0, **others: str) -> str:
        """Run a command; return what it printed."""
        command = [str(Path(sys.executable).with_name("headrace")), *arguments]
        done = subprocess.run(
            command, cwd=CLONE, env=self.environment | others, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == expected, (arguments, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout + done.stderr


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_a_secured_cluster_is_used_from_topic_to_audit_and_left_running(secured: SecuredBroker, tmp_path: Path) -> None:
    user = User(tmp_path, secured)
    missing = user.run("up", TOPIC, expected=1, HEADRACE_KAFKA_CREATE_TOPICS="false")
    assert f"topic {TOPIC} does not exist" in missing
    user.run("down")
    assert "your own Kafka" in user.run("up", TOPIC)
    try:
        produce_readings(user)
        user.run("wait", "--caught-up", "--dataset", TOPIC)
        assert "300" in user.run("query", "--format", "csv", "select count(*) as n from silver.meter")
        assert "balanced" in user.run("audit")
        log = (Path(user.environment["HEADRACE_STATE"]) / "logs" / "stream-meter.log").read_text()
        password = secured.password_file.read_text()
        assert "1 replica: the loss of one broker" in log
        assert password not in log
        assert password not in user.run("settings")
        status = json.loads(user.run("status", "--json"))
        brokers = [(each["state"], each["pid"]) for each in status["processes"] if each["name"] == "broker"]
        assert brokers == [("running", None)]
        # The first batch may be empty: ingest begins while the topic is.
        last = status["datasets"][TOPIC]["batches"]["published"]
        user.run("replay", "run", "--dataset", TOPIC, "--batches", f"0..{last}", "--yes")
    finally:
        user.run("down")
    assert secured.process.poll() is None


@pytest.mark.extended
def test_a_wrong_password_is_refused_with_the_reason(secured: SecuredBroker, tmp_path: Path) -> None:
    user, wrong = User(tmp_path, secured), tmp_path / "wrong"
    wrong.write_text("not it")
    try:
        output = user.run("up", TOPIC, expected=1, HEADRACE_KAFKA_PASSWORD_FILE=str(wrong))
        assert "uthentication" in output
    finally:
        user.run("down")
    assert "cannot be read" in user.run(
        "produce", "weather", expected=2, HEADRACE_KAFKA_PASSWORD_FILE=str(tmp_path / "none")
    )


def produce_readings(user: User) -> None:
    """Send READINGS as a program of the user's own would, with the options of every client."""
    script = (
        "import sys\n"
        "from confluent_kafka import Producer\n"
        "from include.ground.kafka_address import client_options\n"
        "from include.ground.settings import load_settings\n"
        "from include.state.run_files import bootstrap_servers\n"
        "producer = Producer(client_options(bootstrap_servers(load_settings())))\n"
        "for line in sys.stdin.read().splitlines():\n"
        f"    producer.produce({TOPIC!r}, line.encode())\n"
        "assert producer.flush(60) == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], input=READINGS.encode(), cwd=CLONE, env=user.environment, check=True)
