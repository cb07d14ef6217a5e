"""Numbers, times and sizes as the text that pages show; an unknown value is a dash."""

from __future__ import annotations

from datetime import UTC, datetime

from include.declare.event_times import utc_text

UNKNOWN = "–"
STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def whole(value: float | None) -> str:
    """Return a whole number with separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Return a number in few characters: 950, 1.2k, 34M."""
    if value is None:
        return UNKNOWN
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Return seconds as text of at most two units: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for (size, unit), (smaller, small_unit) in zip(STEPS, (*STEPS[1:], (1, "s")), strict=True):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{seconds:.0f} s"


def moment(value: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return UNKNOWN if value is None else utc_text(value)


def moment_of_ms(value: int | None) -> str:
    """Return a time that is given in milliseconds since 1970."""
    return UNKNOWN if value is None else moment(datetime.fromtimestamp(value / 1000, UTC))


def size(count: float | None) -> str:
    """Return bytes as text: 950 B, 1.2 kB, 34 MB."""
    if count is None:
        return UNKNOWN
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:.0f} B"


def percent(share: float | None) -> str:
    """Return a share (0 to 1) in percent, with three digits."""
    return UNKNOWN if share is None else f"{100 * share:.3g} %"
