"""Progress of a plan's job: one JSON object per line on standard output, read by the command that started the job."""

from __future__ import annotations

import json
from typing import Any


def report(**facts: Any) -> None:
    """Report facts to the command that started this job."""
    print(json.dumps(facts), flush=True)
