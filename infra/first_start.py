"""First start of the compose stack: its passwords, each in a volume of its own below /secrets (service `secrets`).

Guarantee: a password that exists is kept: volumes of data know the one of their first start.

Usage: python -m infra.first_start
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from include.ground.durable_files import write_atomically

SECRETS = Path("/secrets")
NAMES = ("postgres", "kafka", "warehouse", "grafana")


def write_passwords(folder: Path) -> list[str]:
    """Write the passwords that are missing, and return their names; whoever has the volume may read its file."""
    missing = [name for name in NAMES if not (folder / name / "password").exists()]
    for name in missing:
        write_atomically(folder / name / "password", f"{secrets.token_urlsafe(24)}\n")
    return missing


def main() -> None:
    """Write what is missing; the last lines say where everything is."""
    written = write_passwords(SECRETS)
    print(f"Passwords written: {', '.join(written)}" if written else "Passwords: those of the first start")
    airflow, console = (os.environ[f"STACK_{name}_PORT"] for name in ("AIRFLOW", "CONSOLE"))
    print(f"Airflow: http://127.0.0.1:{airflow}, user admin")
    print("  password: docker compose exec runner cat /state/airflow/passwords.json")
    print(f"Console: http://127.0.0.1:{console}")
    print("  log-in:   docker compose exec console headrace console --add-user NAME")


if __name__ == "__main__":
    main()
