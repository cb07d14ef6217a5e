"""An error of the platform is expected by its class and code; what its sentence must name, by its facts or a match."""

from __future__ import annotations

from typing import TypeVar

import pytest

from include.ground.errors import HeadraceError

Kind = TypeVar("Kind", bound=HeadraceError)


def raises(kind: type[Kind], code: str, match: str | None = None) -> pytest.RaisesExc[Kind]:
    """Expect an error of a class with a code."""
    return pytest.raises(kind, match=match, check=lambda error: error.code == code)
