"""The compose stack's files keep the rules, and each broken rule is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stack_tools.check import compose_problems, problems

from include.ground.settings import CLONE


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of what the check reads."""
    for name in ("infra", "include", "spark_jobs", "dags", "airflow_package", "requirements", "files", "tests/demo"):
        shutil.copytree(CLONE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("docker-compose.yml", "pyproject.toml", "README.md"):
        shutil.copy(CLONE / name, tmp_path / name)
    return tmp_path


def test_stack_keeps_its_rules() -> None:
    assert problems(CLONE) == []
    assert compose_problems(CLONE) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "found"),
    [
        ("docker-compose.yml", "HEADRACE_RUNNER:", "HEADRACE_RUNER:", "HEADRACE_RUNER: does not exist"),
        ("docker-compose.yml", "HEADRACE_RUNNER: service", "HEADRACE_RUNNER: maybe", "HEADRACE_RUNNER: Input should"),
        ("docker-compose.yml", '["127.0.0.1:${STACK_KAFKA', '["${STACK_KAFKA', "not published on the loopback"),
        ("docker-compose.yml", "    mem_limit: 512m\n", "", "postgres: has no mem_limit"),
        ("docker-compose.yml", "    stop_grace_period: 150s\n", "", "runner: has no stop_grace_period"),
        ("docker-compose.yml", "postgres:15.14-bookworm", "postgres:latest", "neither a fixed tag nor"),
        ("docker-compose.yml", "- state:/state", "- states:/state", "volume states is not declared"),
        (
            "docker-compose.yml",
            "kafka: {condition: service_healthy}",
            "kafka: {condition: service_started}",
            "wait until",
        ),
        ("docker-compose.yml", "  postgres-password:\n", "  password:\n", "volume postgres-password is not declared"),
        (
            "docker-compose.yml",
            "- kafka-password:/secrets/",
            "- state:/secrets/",
            "is in no volume that secrets writes",
        ),
        (
            "docker-compose.yml",
            "    depends_on: *with-passwords\n",
            "",
            "postgres: does not wait for secrets, which writes",
        ),
        ("docker-compose.yml", "target: kafka", "target: broker", "infra/Dockerfile with target broker does not exist"),
        ("docker-compose.yml", "      target: headrace\n", "      target: all\n", "with target all does not exist"),
        (
            "docker-compose.yml",
            "    image: headrace-kafka:local\n",
            "    image: headrace:local\n",
            "built by secrets, kafka",
        ),
        (
            "docker-compose.yml",
            "  image: headrace:local\n  entry",
            "  image: headrace-other:local\n  entry",
            "built by no service",
        ),
        ("infra/stand-ins/compose.yaml", "  postgres:", "  postgress:", "stands in for postgress"),
        ("infra/stand-ins/compose.yaml", "  prometheus:", "  # prometheus:", "prometheus has neither a stand-in"),
        ("infra/stand-ins/compose.yaml", "[registry-only]", "[observability]", "grafana has neither a stand-in"),
        ("infra/observability/prometheus.yaml", "metrics:9464", "metric:9464", "metric:9464, which is not a service"),
        ("infra/observability/prometheus.yaml", "metrics:9464", "metrics:9465", "metrics does not listen at 9465"),
        (
            "infra/observability/prometheus.yaml",
            "alertmanager:9093",
            "am:9093",
            "alerts am:9093, which is not a service",
        ),
        ("infra/observability/prometheus.yaml", "[alerts.yaml]", "[rules.yaml]", "rule file rules.yaml is not mounted"),
        ("infra/grafana/datasource.yaml", "prometheus:9090", "prometheus:9099", "does not listen at 9099"),
        ("infra/grafana/datasource.yaml", "isDefault: true", "isDefault: false", "not exactly one data source"),
        ("infra/grafana/dashboards.yaml", "/etc/grafana/dashboards", "/boards", "no dashboard is mounted in /boards"),
        ("infra/Dockerfile", "USER headrace\nWORKDIR /var/lib/kafka\n", "", "its last USER is root in kafka"),
        ("infra/Dockerfile", "USER headrace\nCMD", "USER root\nCMD", "its last USER is root in headrace"),
        ("infra/objectstore/Dockerfile", "USER ceph\n", "", "its last USER is root"),
        ("docker-compose.yml", "HEADRACE_WAREHOUSE_SECRET_FILE:", "HEADRACE_WAREHOUSE_SECRET:", "does not exist"),
        ("infra/Dockerfile", "COPY --chown=headrace dags", "COPY dag", "copies dag, which does not exist"),
        ("docker-compose.yml", "  cap_drop: [ALL]\n", "", "postgres: keeps its capabilities"),
        ("docker-compose.yml", "cap_add: [CHOWN,", "cap_add: [SYS_ADMIN,", "no image needs: SYS_ADMIN"),
        (
            "docker-compose.yml",
            "    mem_limit: 256m\n",
            "    mem_limit: 256m\n    cap_add: [CHOWN]\n",
            "no image of ours needs: CHOWN",
        ),
        ("docker-compose.yml", "  read_only: true\n", "", "kafka: may write into its image"),
        ("docker-compose.yml", '  security_opt: ["no-new-privileges:true"]\n', "", "postgres: may get new privileges"),
        (
            "docker-compose.yml",
            "    shm_size: 128m\n",
            "    privileged: true\n",
            "postgres: has the rights of the host",
        ),
        ("docker-compose.yml", "HEADRACE_KAFKA_USER: headrace", "HEADRACE_KAFKA_PORT: 0", "SASL_PLAINTEXT needs"),
        ("infra/kafka/serve.sh", "STACK:SASL_PLAINTEXT", "STACK:PLAINTEXT", "STACK at :9092 needs no log-in"),
        (
            "infra/kafka/serve.sh",
            "INTERNAL://127.0.0.1:9095,C",
            "INTERNAL://:9095,C",
            "INTERNAL at :9095 needs no log-in",
        ),
        ("infra/Dockerfile", "RUN apt-get", "RUN --mount=type=cache apt-get", "RUN needs BuildKit"),
        ("infra/Dockerfile", "FROM ${BASE}", "FROM ubuntu:24.04", "cannot be replaced by an ARG"),
    ],
)
def test_broken_rule_is_found(clone: Path, file: str, before: str, after: str, found: str) -> None:
    path, change = clone / file, replaced(before, after)
    path.write_text(change(path.read_text("utf-8")), "utf-8")
    assert any(found in problem for problem in problems(clone)), problems(clone)


def test_image_with_a_digest_is_fixed(clone: Path) -> None:
    path, digest = clone / "docker-compose.yml", f"postgres@sha256:{'0' * 64}"
    path.write_text(path.read_text("utf-8").replace("postgres:15.14-bookworm", digest), "utf-8")
    assert problems(clone) == []


def test_code_that_the_platforms_image_runs_is_copied_whole(tmp_path: Path) -> None:
    _, _, text = (CLONE / "infra/Dockerfile").read_text("utf-8").partition(" AS platform\n")
    text, _, _ = text.partition("\nFROM ")
    assert "infra.jars.fetch" in text
    lines = [line.split() for line in text.splitlines() if line.startswith("COPY")]
    for words in lines:
        *sources, target = [word for word in words[1:] if not word.startswith("--")]
        for source in sources:
            into = tmp_path / (target if target.endswith("/") else str(Path(target).parent))
            into.mkdir(parents=True, exist_ok=True)
            found = CLONE / source
            (shutil.copytree if found.is_dir() else shutil.copy)(found, into / found.name)
    command = [sys.executable, "-S", "-c", "import infra.jars.fetch"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def replaced(before: str, after: str) -> Callable[[str], str]:
    """Return a function that replaces a text that occurs."""

    def change(text: str) -> str:
        assert before in text
        return text.replace(before, after)

    return change
