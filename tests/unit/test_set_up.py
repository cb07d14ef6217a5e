"""`make setup`: which Python it takes, and that it looks at the machine before it fetches anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from include.ground.settings import CLONE


def sourced(**environment: str) -> subprocess.CompletedProcess[str]:
    """Return how the search for Python ends in this environment; uv is not fetched."""
    code = '. infra/uv.sh; echo "took $PYTHON"'
    return subprocess.run(
        ["bash", "-c", code], cwd=CLONE, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_python_of_another_version_is_refused_and_named(tmp_path: Path) -> None:
    other = tmp_path / "python3.13"
    other.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.13.1" && exit 0\nexit 1\n', "utf-8")
    other.chmod(0o755)
    done = sourced(PYTHON=str(other))
    assert done.returncode == 1
    assert f"Python 3.11 is needed, and PYTHON={other} is Python 3.13.1; nothing was installed" in done.stderr


def test_set_up_looks_for_java_before_it_fetches_anything() -> None:
    lines = (CLONE / "infra" / "setup.sh").read_text("utf-8").splitlines()
    assert lines.index("  require_java") < lines.index("  . infra/uv.sh")
