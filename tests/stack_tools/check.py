"""Checks docker-compose.yml and the image files without an engine: `python -m stack_tools.check` (`make stack-check`).

Reads: docker-compose.yml, infra/stand-ins/compose.yaml, infra/**/Dockerfile, the settings.  Writes: nothing.
Guarantee: exit 0 only when every HEADRACE_ variable is a setting with a valid value, and every service keeps the rules.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from include.ground.errors import HeadraceError
from include.ground.settings import CLONE, PREFIX, Settings, reject_unknown
from stack_tools.provisioning import provisioning_problems

COMPOSE, STAND_INS = "docker-compose.yml", "infra/stand-ins/compose.yaml"
VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}")
INSTRUCTIONS = {
    *("ARG", "FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "CMD", "ENTRYPOINT", "EXPOSE", "STOPSIGNAL"),
}
ONE_SHOT = "service_completed_successfully"
OURS = ("headrace-", "headrace:")
FIRST_START, SECRETS = "secrets", "/run/secrets/"
FIXED = re.compile(r":(?!latest$)[\w.-]+$|@sha256:[0-9a-f]{64}$")
# What an official image needs to give its volume to its user, and to become that user.
NEEDED = {"CHOWN", "DAC_READ_SEARCH", "FOWNER", "SETGID", "SETUID"}
WRITES_EVERYWHERE = "headrace-objectstore:local"
KAFKA = "infra/kafka/serve.sh"


def problems(clone: Path) -> list[str]:
    """Return what is wrong with the stack's files below `clone`, one sentence each."""
    stack, stand_ins = (with_defaults(load_compose(clone / name)) for name in (COMPOSE, STAND_INS))
    found = [*unknown_services(stack, stand_ins), *left_to_a_registry(stack, stand_ins)]
    found += [f"{COMPOSE}, {what}" for what in provisioning_problems(clone, stack)]
    found += [f"{KAFKA}: {what}" for what in listener_problems((clone / KAFKA).read_text("utf-8"))]
    found += [f"{COMPOSE}, {what}" for what in (*build_problems(clone, stack), *password_problems(stack))]
    one_shots = completed_services(stack)
    for name, service in stack["services"].items():
        found += [f"{COMPOSE}, {name}: {what}" for what in service_problems(clone, stack, service, name in one_shots)]
    for path in sorted((clone / "infra").glob("**/Dockerfile")):
        found += [f"{path.relative_to(clone)}: {what}" for what in image_problems(clone, path)]
    return found


def load_compose(path: Path) -> Any:
    """Return a compose file; the tags with which Compose overrides a value instead of adding to it are left out."""
    return yaml.load(path.read_text("utf-8"), ComposeLoader)  # noqa: S506  (a safe loader)


class ComposeLoader(yaml.SafeLoader):
    """YAML with Compose's tag for lists that replace those of the first file."""


def replacing_list(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> list[Any]:
    """Return a list that replaces the one of the first file."""
    return list(loader.construct_sequence(node, deep=True))


ComposeLoader.add_constructor("!override", replacing_list)


def with_defaults(value: Any) -> Any:
    """Return a YAML value with `${NAME:-default}` replaced by the default, and without `<<` and x- keys' effect."""
    if isinstance(value, dict):
        return {key: with_defaults(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_defaults(item) for item in value]
    return VARIABLE.sub(lambda match: match[2] or "", value) if isinstance(value, str) else value


def unknown_services(stack: Mapping[str, Any], stand_ins: Mapping[str, Any]) -> Iterator[str]:
    """Yield stand-ins and dependencies of services that do not exist."""
    known = set(stack["services"])
    for name in set(stand_ins["services"]) - known:
        yield f"{STAND_INS}: stands in for {name}, which {COMPOSE} does not have"
    for name, service in stack["services"].items():
        for other in set(service.get("depends_on", {})) - known:
            yield f"{COMPOSE}, {name}: depends on {other}, which does not exist"


def left_to_a_registry(stack: Mapping[str, Any], stand_ins: Mapping[str, Any]) -> Iterator[str]:
    """Yield services of official images that have no stand-in and are not left out explicitly."""
    for name, service in stack["services"].items():
        instead = stand_ins["services"].get(name, {})
        built = str(instead.get("image", service["image"])).startswith(OURS)
        left_out = set(instead.get("profiles", ())) - set(service.get("profiles", ()))
        if not built and not left_out:
            yield f"{STAND_INS}: {name} has neither a stand-in nor a profile of its own that leaves it out"


def build_problems(clone: Path, stack: Mapping[str, Any]) -> Iterator[str]:
    """Yield images of ours that `docker compose up` does not build, or would build twice."""
    builders: dict[str, list[str]] = {}
    for name, service in stack["services"].items():
        if not str(service["image"]).startswith(OURS):
            continue
        built = builders.setdefault(service["image"], [])
        if (build := service.get("build")) is None:
            continue
        built.append(name)
        path = clone / build["dockerfile"]
        stages = re.findall(r"^FROM \S+ AS (\S+)$", path.read_text("utf-8"), re.MULTILINE) if path.is_file() else None
        if stages is None or build.get("target") not in (*stages, None):
            yield f"{name}: {build['dockerfile']} with target {build.get('target')} does not exist"
    for image, names in builders.items():
        if len(names) != 1:
            yield f"image {image} is built by {', '.join(names) or 'no service'}, instead of by one"


def password_problems(stack: Mapping[str, Any]) -> Iterator[str]:
    """Yield passwords that a fresh clone lacks: not written by the first start, or read before it."""
    services = stack["services"]
    written = {mount.split(":")[0] for mount in services[FIRST_START]["volumes"]}
    waiting: set[str] = {FIRST_START}
    while more := {name for name, each in services.items() if waiting & set(each.get("depends_on", ()))} - waiting:
        waiting |= more
    for name, service in services.items():
        mounts = {str(mount).split(":")[1]: str(mount).split(":")[0] for mount in service.get("volumes", ())}
        for key, value in service.get("environment", {}).items():
            if not str(value).startswith(SECRETS):
                continue
            if mounts.get(str(value).rpartition("/")[0]) not in written:
                yield f"{name}: {key} is in no volume that {FIRST_START} writes"
            elif name not in waiting:
                yield f"{name}: does not wait for {FIRST_START}, which writes {value}"
    if "secrets" in stack:
        yield "secrets of files: a fresh clone has none"


def completed_services(stack: Mapping[str, Any]) -> set[str]:
    """Return the services that others wait for to end."""
    needs = [need for service in stack["services"].values() for need in service.get("depends_on", {}).items()]
    return {name for name, how in needs if how.get("condition") == ONE_SHOT}


def service_problems(
    clone: Path, stack: Mapping[str, Any], service: Mapping[str, Any], one_shot: bool
) -> Iterator[str]:
    """Yield the rules that a service breaks."""
    yield from setting_problems(service.get("environment", {}))
    image = str(service.get("image", ""))
    if not FIXED.search(image):
        yield f"image {image!r} has neither a fixed tag nor a digest"
    if service.get("cap_drop") != ["ALL"]:
        yield "keeps its capabilities: cap_drop: [ALL]"
    if (added := set(service.get("cap_add", ()))) and image.startswith(OURS):
        yield f"has capabilities, which no image of ours needs: {', '.join(sorted(added))}"
    elif added - NEEDED:
        yield f"has capabilities that no image needs: {', '.join(sorted(added - NEEDED))}"
    if "no-new-privileges:true" not in service.get("security_opt", ()):
        yield "may get new privileges: security_opt: [no-new-privileges:true]"
    if service.get("read_only") is not True and image != WRITES_EVERYWHERE:
        yield "may write into its image: read_only: true"
    if service.get("privileged") or service.get("network_mode") == "host":
        yield "has the rights of the host"
    if "mem_limit" not in service:
        yield "has no mem_limit"
    if not one_shot:
        yield from (f"has no {key}" for key in ("healthcheck", "stop_grace_period", "restart") if key not in service)
    for port in service.get("ports", []):
        if not str(port).startswith("127.0.0.1:"):
            yield f"port {port} is not published on the loopback address alone"
    for name, how in service.get("depends_on", {}).items():
        if how.get("condition") not in ("service_healthy", ONE_SHOT):
            yield f"does not wait until {name} is healthy"
    yield from volume_problems(clone, stack, service)


def listener_problems(text: str) -> Iterator[str]:
    """Yield listeners of the stack's broker that others reach without a log-in."""
    given = dict(re.findall(r"^(listeners|listener\.security\.protocol\.map)=(.*)$", text, re.MULTILINE))
    protocols = dict(each.split(":", 1) for each in given["listener.security.protocol.map"].split(","))
    for listener in given["listeners"].split(","):
        name, address = listener.split("://")
        if not protocols[name].startswith("SASL_") and not address.startswith("127.0.0.1:"):
            yield f"listener {name} at {address} needs no log-in"


def volume_problems(clone: Path, stack: Mapping[str, Any], service: Mapping[str, Any]) -> Iterator[str]:
    """Yield mounts that are neither a named volume nor a file of the repository that is read only."""
    for mount in service.get("volumes", []):
        source, _, *options = str(mount).split(":")
        if not source.startswith("."):
            if source not in stack.get("volumes", {}):
                yield f"volume {source} is not declared"
        elif options != ["ro"]:
            yield f"{source} of the host is not mounted read only"
        elif not (clone / source).exists():
            yield f"{source} does not exist"


def setting_problems(environment: Mapping[str, Any]) -> Iterator[str]:
    """Yield HEADRACE_ variables that are not settings, and values that the settings refuse."""
    given = {name: str(value) for name, value in environment.items() if name.startswith(PREFIX)}
    try:
        reject_unknown(given)
        Settings.model_validate({name.removeprefix(PREFIX).lower(): read_value(value) for name, value in given.items()})
    except HeadraceError as error:
        yield error.what
    except ValidationError as error:
        for each in error.errors():
            yield f"{PREFIX}{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}"


def read_value(text: str) -> Any:
    """Return the value of a variable: an object of a JSON text, else the text."""
    return json.loads(text) if text.startswith("{") else text


def image_problems(clone: Path, path: Path) -> Iterator[str]:
    """Yield what is wrong with an image file: unknown or BuildKit syntax, missing sources, root at the end."""
    instructions = list(parsed(path.read_text("utf-8")))
    stages = {"debian:bookworm-slim", *(rest.split()[-1] for word, rest in instructions if word == "FROM")}
    for word, rest in instructions:
        if word not in INSTRUCTIONS:
            yield f"unknown instruction {word}"
        if "--mount" in rest or rest.startswith("<<"):
            yield f"{word} needs BuildKit, which not every engine has"
        if word == "FROM" and not rest.startswith("${") and rest.split()[0] not in stages:
            yield f"FROM {rest} cannot be replaced by an ARG"
        if word == "COPY" and "--from" not in rest:
            sources = [source for source in rest.split()[:-1] if not source.startswith("--")]
            yield from (f"copies {source}, which does not exist" for source in sources if not (clone / source).exists())
    yield from (f"its last USER is root{stage and f' in {stage}'}" for stage in run_by_root(instructions))


def run_by_root(instructions: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the stages that are images, not the base of another one, whose user is root; "" is one without a name."""
    users, bases, stage = dict[str, str](), set[str](), ""
    for word, rest in instructions:
        if word == "FROM":
            base, _, stage = rest.partition(" AS ")
            users[stage] = users.get(base, "root")
            bases.add(base)
        elif word == "USER":
            users[stage] = rest
    return (stage for stage, user in users.items() if stage not in bases and user in ("root", "0"))


def parsed(text: str) -> Iterator[tuple[str, str]]:
    """Yield (instruction, arguments) of an image file, continued lines joined, without comments."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, rest.strip()


def compose_problems(clone: Path) -> list[str]:
    """Return what Compose itself reports about the files; nothing when it is not installed."""
    probe = ["docker", "compose", "version"]
    if shutil.which("docker") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        return []
    files = [f"--file={clone / name}" for name in (COMPOSE, STAND_INS)]
    command = ["docker", "compose", "--project-directory", str(clone), *files, "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [done.stderr.strip()] if done.returncode else []


def main() -> int:
    """Print every problem; return 1 when there is one."""
    found = [*problems(CLONE), *compose_problems(CLONE)]
    for problem in found:
        print(f"headrace: {problem}", file=sys.stderr)
    if not found:
        print("stack: services, images and settings are consistent")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
