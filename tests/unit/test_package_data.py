"""The distribution has the files that are no Python."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch

from include.ground.render_template import TEMPLATES
from include.ground.settings import CLONE


def test_every_template_is_package_data() -> None:
    declared = tomllib.loads((CLONE / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    patterns = declared["include.ground"]
    names = [path.relative_to(TEMPLATES.parent).as_posix() for path in TEMPLATES.rglob("*.*")]
    assert names
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []
