"""Signals that ask a process to stop, as an event."""

from __future__ import annotations

import os
import signal
import threading


def stop_on(*numbers: int) -> threading.Event:
    """Return an event that is set once the process receives one of these signals.

    Call it in the main thread. A later call takes the signals over: the earlier event is not set any more. After the
    first signal the thread ends, and further signals do nothing.

    A thread sets it. A handler runs in the main thread, between any two of its instructions: if the event is being
    waited for there, the handler would wait for ever for the event's lock, which its own thread holds.
    """
    stop = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # Python's own handler writes the number of each signal; nothing else may be done at that moment.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)

    def follow() -> None:
        while os.read(reading, 1)[0] not in numbers:
            pass
        stop.set()

    threading.Thread(target=follow, name="stop-signals", daemon=True).start()
    return stop
