"""`make setup`: which Python and Java it takes, and what it brings to a machine that has none. Nothing is fetched."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
from cryptography.x509.oid import NameOID

from include.ground.settings import CLONE
from infra import java_home

TOOLS = ("bash", "cat", "cksum", "cut", "dirname", "flock", "mkdir", "rm", "sed", "tr")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A PATH without Python and Java; its uv is of the locked version, notes its arguments, and installs nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(str(shutil.which(tool)))
    locked = (CLONE / "requirements" / "uv.lock").read_text("utf-8").split("==")[1].split()[0]
    cases = f'"--version ") echo "uv {locked}" ;; "python find") echo /brought/python ;; venv*) exit 9 ;;'
    program(folder, "uv", f'case "$1 $2" in {cases} esac\necho "$@" >>{tmp_path}/uv.log')
    return folder


def program(folder: Path, name: str, code: str) -> Path:
    path = folder / name
    path.write_text(f"#!{shutil.which('bash')}\n{code}\n", "utf-8")
    path.chmod(0o755)
    return path


def ran(code: str, path: Path, cwd: Path = CLONE, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": str(path), "HOME": os.environ.get("HOME", "/"), **environment}
    return subprocess.run(
        [str(shutil.which("bash")), "-c", code], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )


def taken(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran('set -eu; . infra/uv.sh; find_tools; echo "took $PYTHON"', path, **environment)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_python_of_the_machine_is_taken(bare: Path, version: str) -> None:
    found = program(bare, "python3", f"echo {version}")
    assert taken(bare).stdout == f"took {found}\n"


def test_python_may_be_a_version(bare: Path) -> None:
    program(bare, "python3", "echo 3.11")
    found = program(bare, "python3.13", "echo 3.13")
    assert taken(bare, PYTHON="3.13").stdout == f"took {found}\n"


def test_python_of_another_version_is_refused_and_named(bare: Path) -> None:
    other = program(bare, "python3.14", "echo 3.14")
    done = taken(bare, PYTHON=str(other))
    assert done.returncode == 1
    assert f"PYTHON={other} is Python 3.14, and 3.11, 3.12, 3.13 are supported; nothing was installed" in done.stderr


@pytest.mark.parametrize(("wanted", "fetched"), [("", "3.13"), ("3.12", "3.12")])
def test_uv_brings_a_python_that_the_machine_lacks(bare: Path, wanted: str, fetched: str) -> None:
    program(bare, "python3", "echo 3.9")
    done = taken(bare, PYTHON=wanted)
    assert done.stdout.endswith("took /brought/python\n")
    assert f"python install --quiet --no-bin {fetched}\n" in (bare.parent / "uv.log").read_text("utf-8")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone as far as set-up reads it before it installs."""
    folder = tmp_path / "clone"
    (folder / "infra").mkdir(parents=True)
    for name in ("setup.sh", "uv.sh"):
        shutil.copy(CLONE / "infra" / name, folder / "infra")
    shutil.copytree(CLONE / "requirements", folder / "requirements")
    shutil.copy(CLONE / "pyproject.toml", folder)
    return folder


@pytest.mark.parametrize(
    ("java", "groups"),
    [("", "runtime java"), ('openjdk version "11.0.2"', "runtime java"), ('openjdk version "21.0.2"', "runtime")],
)
def test_java_is_brought_to_a_machine_without_one_that_is_new_enough(
    bare: Path, clone: Path, java: str, groups: str
) -> None:
    program(bare, "python3", "echo 3.12")
    if java:
        program(bare, "java", f"echo '{java}' >&2")
    done = ran("bash infra/setup.sh runtime", bare, clone)
    assert f"Python packages ({groups})" in done.stdout
    assert done.returncode == 9, "the stand-in of uv makes no environment"


def test_java_home_without_java_is_refused_before_anything_is_fetched(bare: Path, clone: Path) -> None:
    done = ran("bash infra/setup.sh runtime", bare, clone, JAVA_HOME="/nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert "JAVA_HOME=/nowhere holds no Java 17 or newer; nothing was installed" in done.stderr


def test_launcher_of_the_packaged_java_leaves_out_the_module_that_it_lacks(tmp_path: Path) -> None:
    java = program(tmp_path, "java of the package", 'printf "%s|" "$@"')
    text = java_home.LAUNCHER.format(java=shlex.quote(str(java)), trusting=shlex.quote("-Dstore=/a b"))
    launcher = program(tmp_path, "java", text)
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b/*", ""]
    done = subprocess.run([launcher, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "-Dstore=/a b|-Xmx1g|-cp|a b/*||"


def test_packaged_java_trusts_what_the_machine_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a company's own")])
    day = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, day, day.replace(year=2036))
    certificate = builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(key, SHA256())
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(certificate.public_bytes(Encoding.PEM))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    [found] = pkcs12.load_pkcs12(java_home.trusted(), None).additional_certs
    assert found.certificate == certificate
