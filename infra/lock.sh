#!/usr/bin/env bash
# Regenerates requirements/*.lock: bash infra/lock.sh [--upgrade]
# uv and Flink are installed alone; else one resolution over all groups, then each group constrained to it, so that every group has the same versions.
# Without --upgrade, versions in the current locks stay where they still satisfy the constraints.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p .cache
. infra/uv.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

compile() {
  "$UV" pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header "$@"
}

all=$work/all.txt
sed -n 's/^\([A-Za-z0-9].*==[^ ]*\).*/\1/p' requirements/{build,runtime,dev,quality,airflow}.lock | sort -u >"$all"
echo "Resolving all groups at once: about half a minute"
compile pyproject.toml requirements/build.in --group dev --group quality --group airflow "$@" -o "$all"

compile requirements/uv.in -o "$work/uv.lock"
compile requirements/flink.in -o "$work/flink.lock"
compile requirements/build.in -c "$all" -o "$work/build.lock"
compile pyproject.toml -c "$all" -o "$work/runtime.lock"
for group in dev quality airflow; do compile --group "pyproject.toml:$group" -c "$all" -o "$work/$group.lock"; done

for lock in uv flink build runtime dev quality airflow; do
  if cmp -s "$work/$lock.lock" "requirements/$lock.lock"; then
    echo "  $lock.lock: unchanged"
  else
    echo "  $lock.lock: changed"
    cp "$work/$lock.lock" "requirements/$lock.lock"
  fi
done
