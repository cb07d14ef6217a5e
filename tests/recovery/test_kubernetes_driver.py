"""A driver with the chart's options asks a stand-in of Kubernetes for executors, whose pods run as processes.

What is real: Spark's scheduler for Kubernetes and its client, the requests, the pods, an executor's script and Java.
What is not: Kubernetes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_stand_in import NAMESPACE, kubernetes
from stack_tools.chart import KUBERNETES, rendered, variables

from include.ground.ports import LOOPBACK
from include.ground.settings import CLONE

pytestmark = pytest.mark.extended
PROGRAM = """
from include.ground.settings import load_settings
from spark_jobs.backends.spark_session import open_session

session = open_session(load_settings(), "on kubernetes")
print("rows", session.range(1000).repartition(3).count())
session.stop()
"""


def of_kind(objects: list[Any], kind: str) -> Any:
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def run_driver(log: Path, environment: dict[str, str]) -> str:
    """Run the program to its end, and end its JVM; return what both have said."""
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=CLONE,
            env=os.environ | environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        driver.wait(300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    return log.read_text("utf-8", "replace")


def test_driver_gets_executors_by_the_charts_options_and_rights(tmp_path: Path) -> None:
    values = yaml.safe_load((CLONE / KUBERNETES / "cluster.yaml").read_text("utf-8"))
    values["spark"] |= {"cores": 1, "executorCores": 1, "executorMemory": "512m"}
    objects = rendered(CLONE / KUBERNETES / "headrace", values)
    template = tmp_path / "executor.yaml"
    template.write_text(of_kind(objects, "ConfigMap")["data"]["executor.yaml"], "utf-8")
    host = of_kind(objects, "StatefulSet")["spec"]["template"]
    options = json.loads(variables(host["spec"]["containers"][0])["HEADRACE_SPARK_CONF"])
    options |= {
        "spark.driver.host": LOOPBACK,
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.kubernetes.executor.apiPollingInterval": "1s",
    }
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    name = options["spark.kubernetes.driver.pod.name"]
    about = {"name": name, "uid": "1", "namespace": NAMESPACE}
    driver = {"kind": "Pod", "apiVersion": "v1", "metadata": about, "spec": host["spec"], "status": ready}
    (tmp_path / "pods").mkdir()
    with kubernetes(tmp_path / "pods", driver, of_kind(objects, "Role")) as (node, url):
        environment = {
            "HEADRACE_STATE": str(tmp_path / "state"),
            "HEADRACE_SPARK_MASTER": f"k8s://{url}",
            "HEADRACE_SPARK_CONF": json.dumps(options),
            "HEADRACE_DRIVER_MEMORY": "512m",
        }
        shown = run_driver(tmp_path / "driver.log", environment)
    logs = "\n".join(path.read_text("utf-8", "replace")[-3000:] for path in (tmp_path / "pods").glob("*/log"))
    assert "rows 1000" in shown, f"{shown[-4000:]}\n{logs}"

    [pod] = [each for each in node.made if each["kind"] == "Pod"]
    [container] = pod["spec"]["containers"]
    labels = of_kind(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    assert labels.items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["serviceAccountName"] == "headrace-executor"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["metadata"]["ownerReferences"][0]["name"] == name
    assert (container["image"], container["args"]) == (values["image"], ["executor"])
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts["/state"] == "state"
    # An empty volume below the state folder would hide what the driver looks for there.
    assert [path for path in mounts if path.startswith("/state/")] == []
    assert {each["name"]: each.get("value") for each in container["env"]}["SPARK_LOCAL_DIRS"] == "/var/spark"

    # When a session ends, Spark would delete by label what it has never made.
    assert node.refused <= {("persistentvolumeclaims", "deletecollection"), ("services", "deletecollection")}
    assert {("pods", "create"), ("pods", "watch"), ("configmaps", "create")} <= node.asked
    assert node.chosen("pods", {"spark-role": "executor"}) == []
