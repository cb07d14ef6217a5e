#!/usr/bin/env bash
# The README's two commands on a bare machine: bash infra/bare/test_bare.sh [TARGET…]   (default: demo test)
# Reads: the last commit. Writes: nothing outside the container, which is removed at the end.
# Guarantee: an ordinary user, 12 GB of memory, no git, no package of this machine; the exit code is that of the first failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

docker info >/dev/null 2>&1 || {
  printf 'headrace: no Docker engine is reachable; nothing was run\n  → start one, then make test-bare\n' >&2
  exit 2
}
docker build --quiet --tag headrace-bare infra/bare >/dev/null
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(demo test)
git archive --prefix=headrace/ HEAD |
  docker run --rm --interactive --memory 12g --init headrace-bare \
    bash -euc 'tar -x; cd headrace; for target in "$@"; do echo "== make $target"; time make "$target"; done' - "${targets[@]}"
