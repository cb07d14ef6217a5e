"""An error of the platform is asserted by its class and code, and by the facts that the sentence must name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from include.ground.errors import HeadraceError, Terminal


@contextmanager
def refused(
    code: str, match: str | None = None, kind: type[HeadraceError] = Terminal
) -> Iterator[pytest.ExceptionInfo[HeadraceError]]:
    with pytest.raises(kind, match=match) as found:
        yield found
    assert found.value.code == code
