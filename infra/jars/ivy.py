"""Downloads jars with the Ivy inside the pyspark wheel, so that no build tool is needed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from include.ground.errors import Terminal, Transient
from include.ground.java import Jar

SETTINGS = Path(__file__).with_name("ivysettings.xml")
ARRIVED = re.compile(r"\[SUCCESSFUL \] (?P<group>[^#]+)#(?P<artifact>[^;]+);(?P<version>[^!]+)!")


class IvyMissing(Terminal):
    """pyspark, or the Ivy jar in it, is not installed."""

    def __init__(self) -> None:
        super().__init__("pyspark with its ivy-*.jar is not installed here; no jar was fetched", "make setup")


class JarsUnavailable(Transient):
    """Jars could not be downloaded; `missing` lists the coordinates, `output` is the end of Ivy's output."""

    def __init__(self, missing: Sequence[str], output: str) -> None:
        super().__init__(
            f"{len(missing)} jars were not downloaded, first {missing[0]}; the others are in the cache\n{output}",
            "check the network, then make setup again",
        )
        self.missing, self.output = list(missing), output


def ivy_jar() -> Path:
    """Return the path of the Ivy jar in the installed pyspark, without importing pyspark. Raises IvyMissing."""
    spec = importlib.util.find_spec("pyspark")
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    found = sorted(jar for folder in folders for jar in (folder / "jars").glob("ivy-*.jar"))
    if not found:
        raise IvyMissing
    return found[-1]


def ivy_file(jars: Sequence[Jar]) -> str:
    """Return Ivy's XML for exactly these jars, without their dependencies."""
    lines = []
    for jar in jars:
        group, artifact, version = (quoteattr(part) for part in jar.coordinate.split(":"))
        lines.append(
            f'<dependency org={group} name={artifact} rev={version} transitive="false" conf="default->default"/>'
        )
    return (
        '<ivy-module version="2.0"><info organisation="headrace" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def download(java: Path, jars: Sequence[Jar], workspace: Path, arrived: Callable[[Jar, Path], None]) -> None:
    """Download the jars into `workspace`, calling `arrived(jar, path)` for each.

    The jars must be of one folder: Ivy keeps one version of an artifact. Raises JarsUnavailable when one is missing.
    """
    workspace.mkdir(parents=True, exist_ok=True)
    request = workspace / "ivy.xml"
    request.write_text(ivy_file(jars))
    waiting = {jar.coordinate: jar for jar in jars}
    output: deque[str] = deque(maxlen=15)
    command = [java, f"-Divy.default.ivy.user.dir={workspace}", "-cp", ivy_jar(), "org.apache.ivy.Main"]
    command += ["-settings", SETTINGS, "-ivy", request, "-cache", workspace / "cache"]
    with subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        try:
            for line in ivy.stdout or ():
                output.append(line.rstrip())
                jar = waiting.pop(arrived_coordinate(line), None)
                if jar is not None:
                    arrived(jar, downloaded_path(workspace, jar))
        except BaseException:
            ivy.kill()
            raise
    if waiting:
        raise JarsUnavailable(sorted(waiting), "\n".join(line for line in output if line))


def download_archive(java: Path, coordinate: str, workspace: Path) -> Path:
    """Download `group:artifact:version:type:classifier` and return its path. Raises JarsUnavailable."""
    group, artifact, version, kind, classifier = coordinate.split(":")
    workspace.mkdir(parents=True, exist_ok=True)
    names = {name: quoteattr(value) for name, value in (("org", group), ("name", artifact), ("rev", version))}
    request, target = workspace / "ivy.xml", workspace / f"{artifact}-{version}.{kind}"
    request.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="headrace" module="archive"/><configurations><conf name="default"/></configurations>'
        f'<dependencies><dependency org={names["org"]} name={names["name"]} rev={names["rev"]} transitive="false"'
        f' conf="default->default"><artifact name={names["name"]} type={quoteattr(kind)} ext={quoteattr(kind)}'
        f" m:classifier={quoteattr(classifier)}/></dependency></dependencies></ivy-module>"
    )
    command = [java, f"-Divy.default.ivy.user.dir={workspace}", "-cp", ivy_jar(), "org.apache.ivy.Main"]
    command += ["-settings", SETTINGS, "-ivy", request, "-cache", workspace / "cache", "-types", kind]
    command += ["-retrieve", workspace / f"[artifact]-[revision].{kind}"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if not target.is_file():
        raise JarsUnavailable([coordinate], "\n".join(done.stdout.splitlines()[-15:]))
    return target


def arrived_coordinate(line: str) -> str:
    """Return the coordinate that a line of Ivy's output reports as downloaded; empty for other lines."""
    match = ARRIVED.search(line)
    return f"{match['group']}:{match['artifact']}:{match['version']}" if match else ""


def downloaded_path(workspace: Path, jar: Jar) -> Path:
    """Return the path of a jar in Ivy's default cache layout."""
    group, artifact, _ = jar.coordinate.split(":")
    return workspace / "cache" / group / artifact / "jars" / jar.file_name
