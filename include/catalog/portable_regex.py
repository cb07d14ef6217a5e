r"""Regular expressions that mean the same in Java, where records are judged, and in Python, where the rule is checked.

The two agree on characters, classes that are spelled out, groups, alternatives, quantifiers, `.`, `^` and `$` (with
Java's UNIX_LINES). They differ on `\d`, `\w`, `\s` and `\b` outside ASCII, on classes within classes, and on flags.
"""

from __future__ import annotations

import re

from include.catalog.yaml_declarations import DeclarationRefused

PORTABLE = re.compile(
    r"""(?:
      \\[][\\^$.|?*+(){}/\-]        # a sign of the language, escaped
    | \[\^?(?:[^][\\&^]|\\[][\\^&-])+\]    # a class that is spelled out
    | \((?!\?) | \(\?[:=!]          # a group, or a look ahead
    | \)
    | \{\d+(?:,\d*)?\}
    | [^\\[\](){}]
    )*""",
    re.VERBOSE,
)
UNBOUNDED_GROUP = re.compile(r"(?<!\\)\)(?:[*+]|\{\d+,\})(?!\+)")


def validate_portable(pattern: str, place: str) -> None:
    """Refuse a pattern that Java and Python may read differently, or that could end the JVM on a long text."""
    if PORTABLE.fullmatch(pattern) is None:
        why = rf"{pattern!r}: only plain signs, classes like [0-9] (no \d, \w, \s, \b), groups and quantifiers"
        raise DeclarationRefused(place, f"{why} mean the same in Java and Python")
    if UNBOUNDED_GROUP.search(pattern):
        why = f"{pattern!r} repeats a group without bound; Java recurses there, and a long text ends the driver"
        raise DeclarationRefused(place, f"{why}: give it an upper bound, {{0,99}}, or make it possessive, )*+")
    try:
        re.compile(pattern)
    except re.error as error:
        raise DeclarationRefused(place, f"{pattern!r} is no regular expression ({error})") from error
