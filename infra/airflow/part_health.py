"""Health check of a container: exit 0 when Airflow reports one of its parts healthy. Standard library only.

Usage: python -S infra/airflow/part_health.py metadatabase | scheduler | dag_processor | triggerer
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request

TIMEOUT = 6.0


def is_healthy(url: str, part: str) -> bool:
    """Return whether Airflow's health page at `url` reports the part healthy."""
    try:
        with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=TIMEOUT) as answer:
            found = json.loads(answer.read())
    except (OSError, ValueError):
        return False
    return (found.get(part) or {}).get("status") == "healthy"


if __name__ == "__main__":
    sys.exit(0 if is_healthy(os.environ["HEADRACE_AIRFLOW_URL"], sys.argv[1]) else 1)
