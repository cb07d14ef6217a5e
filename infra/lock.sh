#!/usr/bin/env bash
# Regenerates requirements/*.lock: bash infra/lock.sh [--upgrade]
# uv, Flink and Java are installed alone; else one resolution over all groups, then each group constrained to it, so that every group has the same versions.
# Each lock but Flink's serves every supported Python on Linux and macOS; wheels.lock lists the wheels that its packages have.
# Without --upgrade, versions in the current locks stay where they still satisfy the constraints.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p .cache
. infra/uv.sh
find_tools

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

resolve() { "$UV" pip compile --quiet --python-version 3.11 --no-emit-index-url --no-annotate --no-header "$@"; }

EVERYWHERE=(--universal --fork-strategy fewest)
compile() { resolve "${EVERYWHERE[@]}" --generate-hashes "$@"; }

all=$work/all.txt
sed -n 's/^\([a-z0-9][^= ]*==[^ ]*\).*/\1/p' requirements/{build,runtime,dev,quality,airflow}.lock | sort -u >"$all"
echo "Resolving all groups at once: about half a minute"
compile pyproject.toml requirements/build.in --group dev --group quality --group airflow "$@" -o "$all"

cp requirements/{uv,flink,java}.lock "$work" 2>/dev/null || true
compile requirements/uv.in -o "$work/uv.lock"
resolve --generate-hashes requirements/flink.in -o "$work/flink.lock"
compile requirements/java.in -o "$work/java.lock"
compile requirements/build.in -c "$all" -o "$work/build.lock"
compile pyproject.toml -c "$all" -o "$work/runtime.lock"
for group in dev quality airflow; do compile --group "pyproject.toml:$group" -c "$all" -o "$work/$group.lock"; done

resolve "${EVERYWHERE[@]}" --format pylock.toml "$all" requirements/java.in -o "$work/pylock.toml"
"$PYTHON" infra/wheels.py "$work/pylock.toml" >"$work/wheels.lock"

for lock in uv flink java build runtime dev quality airflow wheels; do
  if cmp -s "$work/$lock.lock" "requirements/$lock.lock"; then
    echo "  $lock.lock: unchanged"
  else
    echo "  $lock.lock: changed"
    cp "$work/$lock.lock" "requirements/$lock.lock"
  fi
done
