"""Errors by class and code."""

from __future__ import annotations

from typing import Any

import pytest

from include.ground.errors import HeadraceError


def raises(kind: type[HeadraceError], code: str, match: str | None = None) -> Any:
    """Expect an error of a class with a code."""
    return pytest.raises(kind, match=match, check=lambda error: error.code == code)
