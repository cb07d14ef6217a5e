"""Records what the product computes, or compares it with what was recorded: make golden, make golden-record."""

from __future__ import annotations

import argparse
import difflib
import hashlib
import shutil
import sys
import time
from itertools import islice
from pathlib import Path

from outputs import PARTS, ROOT, CommandFailed, Outputs

RECORDED = Path(__file__).parent / "recorded"
FOUND = ROOT / "build/golden"
"""Where the outputs of the last comparison stay, to be looked at."""
HASHES = "hashes.txt"
MOST_LINES = 12
"""Differing lines of an output that are printed."""


def main() -> int:
    """Compare, print one table; return 1 if an output differs, 2 if a command failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all if not given")
    parser.add_argument("--record", action="store_true", help="write the outputs as the ones to compare with")
    chosen = parser.parse_args()
    if unknown := [part for part in chosen.parts if part not in PARTS]:
        parser.error(f"{unknown[0]!r} is not one of {', '.join(PARTS)}")
    code = 0
    for part in chosen.parts or PARTS:
        began = time.monotonic()
        try:
            found = PARTS[part]()
        except CommandFailed as error:
            print(f"golden: {part}: nothing was compared: {error}", file=sys.stderr)
            code = 2
            continue
        print(f"{part}: {len(found)} outputs after {time.monotonic() - began:.0f} s")
        write(FOUND / part, found)
        if chosen.record:
            write(RECORDED / part, found)
            print(f"recorded: {(RECORDED / part).relative_to(ROOT)}; git diff shows what changed")
        elif not compared(read(RECORDED / part), found):
            code = code or 1
    return code


def write(folder: Path, outputs: Outputs) -> None:
    """Write outputs as files with a file of their hashes, instead of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in outputs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    lines = [f"{hashed(text)}  {name}\n" for name, text in sorted(outputs.items())]
    (folder / HASHES).write_text("".join(lines), "utf-8")


def read(folder: Path) -> Outputs:
    """Return recorded outputs. Exits with 2 if a file is not the one that was recorded."""
    path = folder / HASHES
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    recorded = {name: hash_ for hash_, _, name in (line.partition("  ") for line in lines)}
    outputs = {name: (folder / name).read_text("utf-8") for name in recorded if (folder / name).exists()}
    if other := [name for name, hash_ in recorded.items() if name not in outputs or hashed(outputs[name]) != hash_]:
        print(f"golden: {folder / other[0]} is not the recorded file; nothing more was compared", file=sys.stderr)
        print(f"git restore {folder.relative_to(ROOT)}", file=sys.stderr)
        sys.exit(2)
    return outputs


def compared(recorded: Outputs, found: Outputs) -> bool:
    """Print a line for each output, and the first lines that differ; return whether all are equal."""
    names = sorted({*recorded, *found})
    width = max(map(len, names))
    print(f"{'what':{width}}  {'recorded':16}  {'found':16}  verdict")
    differing = [name for name in names if recorded.get(name) != found.get(name)]
    for name in names:
        hashes = [hashed(each[name])[:16] if name in each else "-" for each in (recorded, found)]
        verdict = "differs" if name in differing else "equal"
        print(f"{name:{width}}  {hashes[0]:16}  {hashes[1]:16}  {verdict}")
    for name in differing:
        print(f"\n{name}:")
        before, after = (each.get(name, "").splitlines() for each in (recorded, found))
        difference = difflib.unified_diff(before, after, "recorded", "found", lineterm="", n=0)
        print("\n".join(line[:200] for line in islice(difference, MOST_LINES)))
    print(f"\n{len(names) - len(differing)} of {len(names)} equal; found: {FOUND.relative_to(ROOT)}")
    return not differing


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
