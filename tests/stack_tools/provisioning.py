"""Checks that the files of Prometheus, Alertmanager and Grafana agree with the stack's services; part of `make
stack-check`.

Reads: docker-compose.yml's mounts, and the mounted files.  Writes: nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import yaml

PROMETHEUS, GRAFANA = "prometheus", "grafana"
CONFIG = "/etc/prometheus/prometheus.yml"
DATASOURCES, DASHBOARDS = "/etc/grafana/provisioning/datasources/", "/etc/grafana/provisioning/dashboards/"


def provisioning_problems(clone: Path, stack: Mapping[str, Any]) -> Iterator[str]:
    """Yield addresses of no service, and files that are named but not mounted."""
    services = stack["services"]
    mounts = {name: mounted_files(clone, service) for name, service in services.items()}
    config = loaded(mounts.get(PROMETHEUS, {}), CONFIG)
    yield from (f"{PROMETHEUS}: scrapes {target}, {why}" for target, why in unknown_targets(services, scraped(config)))
    yield from (f"{PROMETHEUS}: alerts {target}, {why}" for target, why in unknown_targets(services, alerted(config)))
    for name in config.get("rule_files", []):
        if str(PurePosixPath(CONFIG).parent / name) not in mounts[PROMETHEUS]:
            yield f"{PROMETHEUS}: rule file {name} is not mounted next to its configuration"
    yield from grafana_problems(services, mounts.get(GRAFANA, {}))


def grafana_problems(services: Mapping[str, Any], mounts: Mapping[str, Path]) -> Iterator[str]:
    """Yield what is wrong with Grafana's data sources and dashboards."""
    sources = [source for text in below(mounts, DATASOURCES) for source in yaml.safe_load(text)["datasources"]]
    found = unknown_targets(services, [urlsplit(source["url"]).netloc for source in sources])
    yield from (f"{GRAFANA}: queries {target}, {why}" for target, why in found)
    if sum(bool(source.get("isDefault")) for source in sources) != 1:
        yield f"{GRAFANA}: not exactly one data source is the default, which the dashboards use"
    for provider in (each for text in below(mounts, DASHBOARDS) for each in yaml.safe_load(text)["providers"]):
        boards = [json.loads(text) for text in below(mounts, provider["options"]["path"] + "/")]
        if not any(board.get("panels") for board in boards):
            yield f"{GRAFANA}: no dashboard is mounted in {provider['options']['path']}"


def mounted_files(clone: Path, service: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files of the repository in a container, by their path there."""
    mounts = (str(mount).split(":") for mount in service.get("volumes", []))
    return {target: clone / source for source, target, *_ in mounts if (clone / source).is_file()}


def loaded(mounts: Mapping[str, Path], path: str) -> dict[str, Any]:
    """Return a mounted YAML file, an empty one when it is not mounted."""
    return dict(yaml.safe_load(mounts[path].read_text("utf-8"))) if path in mounts else {}


def below(mounts: Mapping[str, Path], folder: str) -> list[str]:
    """Return the texts of the files that are mounted below a folder."""
    return [file.read_text("utf-8") for path, file in mounts.items() if path.startswith(folder)]


def scraped(config: Mapping[str, Any]) -> list[str]:
    """Return the addresses that Prometheus scrapes."""
    return static_targets(config.get("scrape_configs", []))


def alerted(config: Mapping[str, Any]) -> list[str]:
    """Return the addresses that Prometheus sends alerts to."""
    return static_targets(config.get("alerting", {}).get("alertmanagers", []))


def static_targets(groups: list[dict[str, Any]]) -> list[str]:
    """Return the addresses of groups of targets."""
    return [target for group in groups for static in group["static_configs"] for target in static["targets"]]


def unknown_targets(services: Mapping[str, Any], targets: list[str]) -> Iterator[tuple[str, str]]:
    """Yield addresses that no service has, with the reason."""
    for target in targets:
        host, _, port = target.partition(":")
        service = services.get(host)
        if service is None:
            yield target, "which is not a service"
        elif port not in json.dumps([service.get(key) for key in ("entrypoint", "command", "ports", "healthcheck")]):
            yield target, f"but {host} does not listen at {port}"
