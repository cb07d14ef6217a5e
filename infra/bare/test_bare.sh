#!/usr/bin/env bash
# The README's two commands on a bare machine: bash infra/bare/test_bare.sh [TARGET…]   (default: demo test)
# Reads: the last commit. Writes: nothing outside the container, which is removed at the end.
# Guarantee: an ordinary user, no git, no Java, no package of this machine; 4 GB of memory for each target but test, which has
# 12 GB; the exit code is that of the first failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

docker info >/dev/null 2>&1 || {
  printf 'headrace: no Docker engine is reachable; nothing was run\n  → start one, then make test-bare\n' >&2
  exit 2
}
docker build --quiet --tag headrace-bare ${BARE_BASE:+--build-arg "BASE=$BARE_BASE"} infra/bare >/dev/null
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(demo test)
for target in "${targets[@]}"; do
  echo "== make $target"
  git archive --prefix=headrace/ HEAD |
    docker run --rm --interactive --init --memory "$([ "$target" = test ] && echo 12g || echo 4g)" headrace-bare \
      bash -euc 'tar -x; cd headrace; time make "$0"; cat /sys/fs/cgroup/memory.peak 2>/dev/null || true' "$target"
done
