#!/usr/bin/env bash
# The environment of the Flink peer of `headrace bench peers`: bash infra/setup_flink.sh   (after setup.sh; 1.1 GB)
# Its packages need older versions than ours, so it is an environment of its own: .cache/flink. Jars: .jars/flink.
# After an interruption: run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHONS=3.11 # of those that apache-flink 2.3 is made for
# shellcheck source=infra/uv.sh
. infra/uv.sh
find_tools

stamp=.cache/flink/headrace-$(cksum <requirements/flink.lock | tr ' ' -)
if [ ! -e "$stamp" ]; then
  echo "Installing Flink into .cache/flink: half a minute, 400 MB to download the first time"
  "$UV" venv --quiet --clear --python "$PYTHON" .cache/flink
  "$UV" pip install --quiet --no-deps --require-hashes --build-constraints requirements/build.lock \
    --python .cache/flink/bin/python -r requirements/flink.lock
  touch "$stamp"
fi
.venv/bin/python -m infra.jars.fetch --also flink
