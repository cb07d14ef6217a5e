"""The code of a release that runs is the source that its content hash covers."""

from __future__ import annotations

import importlib.util
import py_compile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.declare.yaml_declarations import DeclarationRefused
from spark_jobs.layers.silver_code import load_transformation

HASHED = "def silver(accepted):\n    return accepted\n"


def release(folder: Path, source: str = HASHED) -> Any:
    (folder / "silver.py").write_text(source)
    return SimpleNamespace(name="flights", release="aaa", folder=folder)


def test_byte_code_next_to_a_release_is_not_run(tmp_path: Path) -> None:
    dataset, other = release(tmp_path), tmp_path / "other.py"
    other.write_text("raise ValueError('byte code was run')\n")
    compiled = importlib.util.cache_from_source(str(tmp_path / "silver.py"))
    py_compile.compile(str(other), compiled, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert callable(load_transformation(dataset))


def test_loading_a_release_writes_no_byte_code(tmp_path: Path) -> None:
    load_transformation(release(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["silver.py"]


def test_error_of_a_release_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(DeclarationRefused, match=r"silver.py:2: .*ValueError: wrong"):
        load_transformation(release(tmp_path, "\nraise ValueError('wrong')\n"))
