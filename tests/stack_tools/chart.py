"""Lints and renders the Helm chart, and checks what it renders: `python -m stack_tools.chart` (`make chart-check`).

Reads: infra/kubernetes, the settings, and Kubernetes' schemas of a package.  Writes: nothing. Asks no cluster.
Guarantee: exit 0 only when each example of values renders to objects that Kubernetes accepts by their form, whose
HEADRACE_ variables are settings with valid values, whose references lead to something, and whose pods keep the rules of
the stack's services.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart, HelmError, lint
from kubernetes_validate import SchemaNotFoundError, ValidationError, validate

from include.ground.settings import CLONE
from stack_tools.check import FIXED, setting_problems

KUBERNETES = Path("infra/kubernetes")
RELEASE, NAMESPACE = "headrace", "data"
VERSIONS = ("1.28", "1.37")
"""Of Kubernetes: the oldest that Chart.yaml allows, and the newest whose schemas the package has."""
WARNING = 2
"""Helm's number of it; an error is 3, advice 1."""
IN_IMAGE = "/opt/headrace/"
"""Where the image has the clone's files."""
PUT_IN = {"POD_IP": "10.0.0.1", "POD_NAME": "headrace-0"}
"""What Kubernetes puts into variables of a pod that name it."""
REFERENCE = re.compile(r"\$\((\w+)\)")
LOCAL_DIR = "spark-local-dir-"
"""What the name of a volume begins with that Spark takes for its local folder."""
DRIVER_ASKS_FOR = {"pods", "configmaps"}
SECRETS = "/run/secrets/"
READ_BY_EXECUTORS = ("HEADRACE_KAFKA_CA_FILE", "HEADRACE_WAREHOUSE_SECRET_FILE")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
Object = Mapping[str, Any]


def problems(clone: Path) -> list[str]:
    """Return what is wrong with the chart below `clone`, one sentence each, after the example that shows it."""
    examples = sorted((clone / KUBERNETES).glob("*.yaml"))
    found = [f"{KUBERNETES}: there is no example of values"] if not examples else []
    for example in examples:
        values = yaml.safe_load(example.read_text("utf-8"))
        found += [f"{example.name}: {what}" for what in example_problems(clone, values)]
    return found


def example_problems(clone: Path, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the chart as these values render it."""
    chart = clone / KUBERNETES / RELEASE
    report = lint(chart, dict(values), strict=True, namespace=NAMESPACE)
    yield from (f"{each['path']}: {each['error']}" for each in report["messages"] if each["severity"] >= WARNING)
    try:
        objects = rendered(chart, values)
    except HelmError as error:
        yield str(error)
        return
    release = Release(objects, values)
    for each in (*objects, *release.templates):
        name = f"{each['kind']} {each['metadata'].get('name', '')}"
        yield from (f"{name}: {what}" for what in schema_problems(json.dumps(each, default=str)))
    yield from release.problems(clone)


def rendered(chart: Path, values: Mapping[str, Any]) -> list[Object]:
    """Return the objects of a release with these values. Raises HelmError."""
    with Chart.load(chart) as loaded:
        files = loaded.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


@cache
def schema_problems(given: str) -> tuple[str, ...]:
    """Return how an object, as JSON, differs from Kubernetes' schemas of its kind; unknown fields are differences."""
    found = []
    for version in VERSIONS:
        try:
            validate(json.loads(given), version, strict=True)
        except ValidationError as error:
            found.append(f"{'.'.join(map(str, error.path))}: {error.message} (Kubernetes {version})")
        except SchemaNotFoundError as error:
            found.append(error.message)
    return tuple(found)


@dataclass(frozen=True)
class Pod:
    """A pod that a host, or a driver as an executor, makes; `is_server`: it runs until it is told to end."""

    name: str
    labels: Mapping[str, str]
    spec: Object
    is_server: bool

    @property
    def containers(self) -> list[Object]:
        return list(self.spec["containers"])

    @cached_property
    def volumes(self) -> dict[str, Object]:
        return {each["name"]: each for each in self.spec["volumes"]}

    def problems(self) -> Iterator[str]:
        """Yield the rules that the pod breaks, with the container."""
        security = self.spec.get("securityContext", {})
        if security.get("runAsNonRoot") is not True or security.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{self.name}: may run as root, or without the runtime's seccomp profile"
        if self.is_server and "terminationGracePeriodSeconds" not in self.spec:
            yield f"{self.name}: has no terminationGracePeriodSeconds"
        for each in self.containers:
            found = [*container_problems(each), *self._mount_problems(each), *self._file_problems(each)]
            found += server_problems(each) if self.is_server else []
            yield from (f"{self.name}, {each['name']}: {what}" for what in found)

    def _mount_problems(self, container: Object) -> Iterator[str]:
        for mount in container["volumeMounts"]:
            if mount["name"] not in self.volumes:
                yield f"volume {mount['name']} is not declared"
        if "/state" not in paths(container):
            yield "does not mount the state folder at /state"

    def _file_problems(self, container: Object) -> Iterator[str]:
        """Yield settings whose file is in no Secret that the container mounts."""
        there = {
            f"{mount['mountPath']}/{item['path']}"
            for mount in container["volumeMounts"]
            for item in self.volumes.get(mount["name"], {}).get("secret", {}).get("items", ())
        }
        for name, value in variables(container).items():
            if value.startswith(SECRETS) and value not in there:
                yield f"{name}: {value} is in no Secret that is mounted"

    def references(self) -> Iterator[tuple[str, str]]:
        """Yield kind and name of each object that the pod needs."""
        if "serviceAccountName" in self.spec:
            yield "ServiceAccount", self.spec["serviceAccountName"]
        for volume in self.volumes.values():
            if claim := volume.get("persistentVolumeClaim"):
                yield "PersistentVolumeClaim", claim["claimName"]
            if config := volume.get("configMap"):
                yield "ConfigMap", config["name"]


def paths(container: Object) -> set[str]:
    """Return the folders at which a container mounts volumes."""
    return {mount["mountPath"] for mount in container["volumeMounts"]}


def variables(container: Object) -> dict[str, str]:
    """Return a container's variables, with what Kubernetes puts in; a reference to no earlier variable stays."""
    known = dict[str, str]()
    for each in container.get("env", ()):
        text = each["value"] if "value" in each else PUT_IN.get(each["name"], "")
        known[each["name"]] = REFERENCE.sub(lambda match: known.get(match[1], match[0]), text)
    return known


def container_problems(container: Object) -> Iterator[str]:
    """Yield the rules that any container breaks."""
    given = variables(container)
    yield from setting_problems(given)
    yield from (f"{name} refers to a variable that is not before it" for name in given if REFERENCE.search(given[name]))
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False or security.get("capabilities") != {"drop": ["ALL"]}:
        yield "may get privileges: allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "may write into its image: readOnlyRootFilesystem: true"


def server_problems(container: Object) -> Iterator[str]:
    """Yield the rules that a container of a host breaks: image, probes, resources."""
    if not FIXED.search(container.get("image", "")):
        yield f"image {container.get('image')!r} has neither a fixed tag nor a digest"
    yield from (f"has no {probe}" for probe in PROBES if probe not in container)
    resources = container.get("resources", {})
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    if "cpu" not in requests or "memory" not in limits or requests.get("memory") != limits["memory"]:
        yield "needs a request of cpu, and the same memory as request and limit: a host that is out of it ends a driver"


@dataclass(frozen=True)
class Release:
    """What Helm would install with these values."""

    objects: list[Object]
    values: Mapping[str, Any]

    def of(self, kind: str) -> list[Object]:
        """Return the objects of a kind."""
        return [each for each in self.objects if each["kind"] == kind]

    @cached_property
    def templates(self) -> list[Object]:
        """The pods of executors, without what Spark adds: image, resources, variables."""
        return [yaml.safe_load(each["data"]["executor.yaml"]) for each in self.of("ConfigMap")]

    @cached_property
    def hosts(self) -> list[Pod]:
        """The pods of hosts."""
        pods = [(each["metadata"]["name"], each["spec"]["template"]) for each in self.of("StatefulSet")]
        return [Pod(name, pod["metadata"]["labels"], pod["spec"], True) for name, pod in pods]

    @cached_property
    def executors(self) -> list[Pod]:
        """The pods of executors."""
        return [Pod("executor", each["metadata"]["labels"], each["spec"], False) for each in self.templates]

    def problems(self, clone: Path) -> Iterator[str]:
        """Yield the rules that the objects break."""
        for pod in (*self.hosts, *self.executors):
            yield from pod.problems()
        yield from self._missing()
        yield from self._service_problems()
        yield from self._role_problems()
        yield from self._network_problems()
        for pod in self.executors:
            yield from executor_problems(clone, pod, self.hosts)

    def _known(self) -> set[tuple[str, str]]:
        """Return kind and name of the objects that are there; claims may be the user's."""
        given = {self.values.get(folder, {}).get("claim") for folder in ("state", "datasets", "files")}
        made = {(each["kind"], each["metadata"]["name"]) for each in self.objects}
        return made | {("PersistentVolumeClaim", claim) for claim in given if claim}

    def _missing(self) -> Iterator[str]:
        known = self._known()
        for pod in (*self.hosts, *self.executors):
            yield from (f"{pod.name}: {kind} {name} does not exist" for kind, name in set(pod.references()) - known)
        for each in self.of("StatefulSet"):
            if ("Service", name := each["spec"].get("serviceName")) not in known:
                yield f"{each['metadata']['name']}: Service {name} does not exist"
        for each in self.of("RoleBinding"):
            needed = {(one["kind"], one["name"]) for one in (each["roleRef"], *each["subjects"])}
            yield from (f"{kind} {name} does not exist" for kind, name in needed - known)
        needed = {("ServiceAccount", name) for host in self.hosts for name in accounts(host)}
        yield from (f"account {name} does not exist" for _, name in needed - known)

    def _service_problems(self) -> Iterator[str]:
        for each in self.of("Service"):
            chosen = [pod for pod in self.hosts if each["spec"]["selector"].items() <= pod.labels.items()]
            ports = {port["name"] for pod in chosen for one in pod.containers for port in one.get("ports", ())}
            for port in each["spec"]["ports"]:
                if port["targetPort"] not in ports:
                    yield f"Service {each['metadata']['name']}: no pod that it selects has a port {port['targetPort']}"

    def _role_problems(self) -> Iterator[str]:
        for each in self.of("Role"):
            for rule in each["rules"]:
                if "*" in rule["verbs"] or set(rule["resources"]) - DRIVER_ASKS_FOR:
                    yield f"Role {each['metadata']['name']} gives more than a driver asks for: {rule}"
        speaks = any(pod.spec.get("automountServiceAccountToken") is not False for pod in self.hosts)
        if speaks != bool(self.of("Role")):
            yield "a host has a token without a role, or a role without a token"

    def _network_problems(self) -> Iterator[str]:
        selected = [each["spec"]["podSelector"]["matchLabels"] for each in self.of("NetworkPolicy")]
        for pod in (*self.hosts, *self.executors):
            if not any(labels.items() <= pod.labels.items() for labels in selected):
                yield f"{pod.name}: no NetworkPolicy says who may connect"


def accounts(pod: Pod) -> set[str]:
    """Return the service accounts that a host's drivers give their executors."""
    named = re.compile(r'"spark\.kubernetes\.authenticate\.executor\.serviceAccountName":"([^"]+)"')
    texts = (value for each in pod.containers for value in variables(each).values())
    return {name for text in texts for name in named.findall(text)}


def executor_problems(clone: Path, pod: Pod, hosts: Iterable[Pod]) -> Iterator[str]:
    """Yield what an executor lacks that its driver takes for granted."""
    [container] = pod.containers
    scripts = [word.removeprefix(IN_IMAGE) for word in container.get("command", ()) if word.startswith(IN_IMAGE)]
    if not scripts or not all((clone / script).is_file() for script in scripts):
        yield f"executor: its command {container.get('command')} is no script of the image"
    if pod.spec.get("automountServiceAccountToken") is not False:
        yield "executor: has a token of Kubernetes: automountServiceAccountToken: false"
    folders = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"].startswith(LOCAL_DIR)}
    if container.get("workingDir") not in folders:
        yield f"executor: workingDir is no volume {LOCAL_DIR}…; Spark would cover a folder below /state by an empty one"
    for host in hosts:
        for name in READ_BY_EXECUTORS:
            given = [variables(each).get(name, "") for each in host.containers]
            if any(file and file.rpartition("/")[0] not in paths(container) for file in given):
                yield f"executor: does not mount the file of {name}"


def main() -> int:
    """Print every problem; return 1 when there is one."""
    found = problems(CLONE)
    for problem in found:
        print(f"headrace: {problem}", file=sys.stderr)
    if not found:
        print("chart: each example renders, Kubernetes' schemas accept it, and its settings exist")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
