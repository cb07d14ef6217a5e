"""Takes the OS lock of a lease and prints its epoch; then holds it for some seconds: `hold_lease.py PATH SECONDS`."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from include.state.lease import LeaseHeld, take_file_lease

HELD = 3

if __name__ == "__main__":
    try:
        lease = take_file_lease(Path(sys.argv[1]), "the test", datetime.now(UTC))
    except LeaseHeld:
        sys.exit(HELD)
    print(lease.epoch, flush=True)
    time.sleep(float(sys.argv[2]))
