"""Commands in the process of the tests."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import pytest

from include.cli.main import main
from include.ground.settings import load_settings


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True)
class CommandLine:
    """`headrace …` in this process, with its variables alone: a process of its own imports for a second each time."""

    monkeypatch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str, **variables: str) -> Ended:
        """Run a command with these variables of Headrace and no others."""
        with self.monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
                patch.delenv(name)
            for name, value in {"HEADRACE_CONSOLE": "off", **variables}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["headrace", *words])
            load_settings.cache_clear()
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
            finally:
                load_settings.cache_clear()
        output, errors = self.capture.readouterr()
        return Ended(code, output, errors)
