"""The Helm chart keeps the rules, each broken rule is found, and an executor starts as Spark's driver expects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, HelmError, HelmValuesError
from stack_tools.chart import KUBERNETES, problems, rendered

from include.ground.settings import CLONE

CHART = CLONE / KUBERNETES / "headrace"
TEMPLATES = "headrace/templates"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of what the check reads."""
    shutil.copytree(CLONE / KUBERNETES, tmp_path / KUBERNETES)
    return tmp_path


def values(example: str, **changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CLONE / KUBERNETES / f"{example}.yaml").read_text("utf-8"))
    return found | changed


def test_chart_keeps_its_rules() -> None:
    assert problems(CLONE) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "found"),
    [
        (f"{TEMPLATES}/hosts.yaml", "kind: StatefulSet", "kind: StatefulSett", "schema for kind StatefulSett"),
        (f"{TEMPLATES}/hosts.yaml", "  serviceName:", "  serviceNam:", "'serviceNam' was unexpected"),
        (f"{TEMPLATES}/hosts.yaml", "replicas: {{ .Values.hosts }}", "replicas: two", "spec.replicas: 'two' is not of"),
        (f"{TEMPLATES}/hosts.yaml", "{{- end }}\n{{- if and", "{{- if and", "hosts.yaml"),
        (f"{TEMPLATES}/_parts.tpl", "HEADRACE_RUNNER", "HEADRACE_RUNER", "HEADRACE_RUNER: does not exist"),
        (f"{TEMPLATES}/_parts.tpl", "value: service}", "value: maybe}", "HEADRACE_RUNNER: Input should"),
        (f"{TEMPLATES}/_parts.tpl", '"spark.kubernetes.namespace"', '"spark.hadoop.x"', "spark.hadoop.x is refused"),
        (f"{TEMPLATES}/_parts.tpl", "- {name: POD_IP,", "- {name: POD_NAME2,", "SPARK_CONF refers to a variable"),
        (f"{TEMPLATES}/_parts.tpl", "$(POD_IP)", "$(POD_IPS)", "HEADRACE_SPARK_CONF refers to a variable"),
        (f"{TEMPLATES}/_parts.tpl", "runAsNonRoot: true", "runAsNonRoot: false", "headrace: may run as root"),
        (f"{TEMPLATES}/_parts.tpl", "allowPrivilegeEscalation: false", "privileged: true", "may get privileges"),
        (f"{TEMPLATES}/_parts.tpl", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may write into"),
        (f"{TEMPLATES}/_parts.tpl", '"livenessProbe" (list 10 12)', "", "runner: has no livenessProbe"),
        (f"{TEMPLATES}/_parts.tpl", "- {name: home, mount", "- {name: house, mount", "volume house is not declared"),
        (f"{TEMPLATES}/_parts.tpl", "mountPath: /state}", "mountPath: /states}", "console: does not mount the state"),
        (f"{TEMPLATES}/_parts.tpl", "/run/secrets/{{ .file.secret }}/", "/run/secrets/", "is in no Secret that is mo"),
        (f"{TEMPLATES}/_parts.tpl", '%s-executor" (include', '%s-worker" (include', "account headrace-worker does not"),
        (f"{TEMPLATES}/hosts.yaml", "      terminationGracePeriodSeconds: 150\n", "", "has no terminationGracePeriod"),
        (f"{TEMPLATES}/hosts.yaml", '.name" . }}-executor}', '.name" . }}-pod}', "ConfigMap headrace-pod does not"),
        (f"{TEMPLATES}/services.yaml", "targetPort: metrics", "targetPort: figures", "has a port figures"),
        (f"{TEMPLATES}/access.yaml", "kind: Role, name: {{", "kind: Role, name: a{{", "Role aheadrace-driver does not"),
        (f"{TEMPLATES}/access.yaml", "resources: [configmaps]", "resources: [secrets]", "gives more than a driver"),
        (f"{TEMPLATES}/access.yaml", "kind: Role\n", "kind: ClusterRole\n", "a host has a token without a role"),
        (f"{TEMPLATES}/network.yaml", '{{- include "headrace.selector" . | nindent 6 }}', "{x: y}", "no NetworkPolicy"),
        (f"{TEMPLATES}/executor.yaml", "/infra/kubernetes/executor.sh", "/infra/run.sh", "is no script of the image"),
        (f"{TEMPLATES}/executor.yaml", "  automountServiceAccountToken: false\n", "", "executor: has a token"),
        (f"{TEMPLATES}/executor.yaml", "name: spark-local-dir-1", "name: local", "executor: workingDir is no volume"),
        (f"{TEMPLATES}/executor.yaml", "mountPath: /run/secrets/{{ . }}", "mountPath: /ca", "HEADRACE_KAFKA_CA"),
        (f"{TEMPLATES}/executor.yaml", " .Values.secretFiles.HEADRACE_KAFKA_CA_FILE", "", "file of HEADRACE_KAFKA_CA"),
        (f"{TEMPLATES}/executor.yaml", " .Values.secretFiles.HEADRACE_WAREHOUSE_SECRET_FILE", "", "_WAREHOUSE_SECRET"),
        (f"{TEMPLATES}/executor.yaml", "- {name: state, mountPath: /state}", "", "executor: does not mount the state"),
        ("headrace/values.yaml", "limits: {memory: 4Gi}", "limits: {memory: 5Gi}", "console: needs a request of cpu"),
        ("headrace/values.yaml", "  enabled: false", "  enabled: maybe", "got string, want boolean"),
        ("headrace/Chart.yaml", "version: 0.1.0\n", "version: one\n", "Chart.yaml"),
        ("cluster.yaml", "HEADRACE_KAFKA_USER:", "HEADRACE_KAFKA_USR:", "HEADRACE_KAFKA_USR"),
        ("cluster.yaml", "headrace:0.1.0", "headrace:latest", "image"),
        ("cluster.yaml", "HEADRACE_KAFKA_CA_FILE", "HEADRACE_KAFKA_CRT_FILE", "HEADRACE_KAFKA_CRT_FILE"),
        ("cluster.yaml", "executorCores: 4", "executorCores: 32", "executor.cores 32 is more than spark.cores.max 16"),
        ("one-host.yaml", "datasets: {claim: datasets}", "datasets: {clam: datasets}", "clam"),
    ],
)
def test_broken_rule_is_found(clone: Path, file: str, before: str, after: str, found: str) -> None:
    path = clone / KUBERNETES / file
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after), "utf-8")
    shown = problems(clone)
    assert shown
    assert any(found in problem for problem in shown), shown


def test_chart_without_examples_is_not_checked(clone: Path) -> None:
    for path in (clone / KUBERNETES).glob("*.yaml"):
        path.unlink()
    assert problems(clone) == ["infra/kubernetes: there is no example of values"]


@pytest.mark.parametrize(
    ("example", "changed", "why"),
    [
        ("cluster", {"state": {"accessMode": "ReadWriteOnce"}}, "ReadWriteMany"),
        ("one-host", {"hosts": 2, "state": {"claim": "shared"}}, "HEADRACE_LEASE_URL"),
        ("one-host", {"settings": {}}, "HEADRACE_KAFKA_BOOTSTRAP"),
        ("one-host", {"environment": {"HEADRACE_PROFILE": "small"}}, "HEADRACE_PROFILE"),
    ],
)
def test_values_that_cannot_work_are_refused_by_helm(example: str, changed: dict[str, Any], why: str) -> None:
    with pytest.raises(HelmError, match=why):
        rendered(CHART, values(example, **changed))


def test_console_is_open_to_whom_it_names_and_with_nobody_named_to_nobody_else() -> None:
    def peers(named: list[Any]) -> list[Any]:
        objects = rendered(CHART, values("one-host", console={"from": named}))
        [policy] = [each for each in objects if each["kind"] == "NetworkPolicy"]
        return [rule.get("from") for rule in policy["spec"]["ingress"]][1:]

    someone = [{"podSelector": {"matchLabels": {"role": "ingress"}}}]
    assert (peers(someone), peers([])) == ([someone], [])


def test_setting_with_a_value_of_another_form_is_refused_by_helm() -> None:
    given = values("one-host")
    given["settings"]["HEADRACE_BATCH_RECORDS"] = "many"
    with pytest.raises(HelmValuesError, match="HEADRACE_BATCH_RECORDS"), Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values(given))


def test_executor_is_started_as_the_driver_says(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    given = {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "4096m",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_EXECUTOR_POD_NAME": "headrace-exec-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Da=with a space",
        "SPARK_JAVA_OPT_1": "-Db=1",
    }
    path = f"{java.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", str(CLONE / KUBERNETES / "executor.sh"), "executor"]
    done = subprocess.run(command, env=given | {"PATH": path}, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[:4] == ["-Da=with a space", "-Db=1", "-Xms4096m", "-Xmx4096m"]
    options = dict(zip(words[7::2], words[8::2], strict=True))
    assert options == {
        "--driver-url": given["SPARK_DRIVER_URL"],
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "headrace-exec-1",
    }


def test_executor_script_does_nothing_else() -> None:
    command = ["bash", str(CLONE / KUBERNETES / "executor.sh"), "driver"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "got: driver" in done.stderr) == (2, True)
