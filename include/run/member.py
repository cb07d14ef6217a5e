"""A dataset's place in a shared driver, as a process of its own that does nothing (spark_jobs/stream/adr-0012).

    python -S include/run/member.py SOCKET DATASET

While it lives, the driver at SOCKET runs the dataset's loop. SIGTERM drains the loop; this process ends with the loop,
and with its exit code, or when the driver ends. Twenty of them wait beside one driver, so it imports nothing of ours.
"""

import os
import signal
import socket
import sys

FAILED = 1


def main(place: str, dataset: str) -> int:
    """Hold the place until the loop ends; return its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder, name = os.path.split(place)
    # The path of a socket has at most 107 bytes.
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as driver:
        try:
            driver.connect(name)
            driver.sendall(f"{os.getpid()} {dataset}\n".encode())
            signal.signal(signal.SIGTERM, lambda *_: driver.shutdown(socket.SHUT_WR))
            code = driver.recv(16)
        except OSError:
            code = b""
    if not code:
        print(f"{dataset}: its shared driver has ended, or takes no more datasets", flush=True)
    return int(code or FAILED)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
