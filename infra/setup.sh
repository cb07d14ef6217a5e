#!/usr/bin/env bash
# Set-up of a clone: bash infra/setup.sh GROUP...   (groups: runtime dev quality airflow; runtime is always in)
# Writes: .venv/, .jars/ (with the class archive), .cache/.  Outside the clone: only the caches of uv and of the jars.
# Guarantee: the stamp is written last and names locks, path and Python; any difference runs the set-up again.
# After an interruption: run it again; downloads are in the caches.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

STAMP=.venv/headrace-setup

# Requested and already installed groups, in the order of their locks, without duplicates.
selected_groups() {
  local group
  for group in "$@"; do
    [ -f "requirements/$group.lock" ] && [ "$group" != build ] && [ "$group" != uv ] || {
      printf 'headrace: unknown group %s\n  → groups: runtime dev quality airflow\n' "$group" >&2
      return 1
    }
  done
  for group in runtime dev quality airflow; do
    case " runtime $* $(sed -n 's/^groups: //p' "$STAMP" 2>/dev/null) " in *" $group "*) printf '%s ' "$group" ;; esac
  done
}

# What the installation depends on: groups, their locks, the metadata of this package, the path of the clone.
fingerprint() {
  local group
  printf 'groups: %s\nplace: %s\n' "$GROUPS_WANTED" "$PWD"
  for group in build $GROUPS_WANTED; do printf '%s: %s\n' "$group" "$(cksum <"requirements/$group.lock")"; done
  printf 'project: %s\n' "$(cksum <pyproject.toml)"
}

# uv's output without the list of packages.
tidy() { sed -u -e '/^ [-+~] /d' -e 's/^/  /'; }

install() { "$UV" pip install --compile-bytecode --python .venv/bin/python "$@" 2>&1 | tidy; }

install_python_packages() {
  local group locks=(-r requirements/build.lock)
  for group in $GROUPS_WANTED; do locks+=(-r "requirements/$group.lock"); done
  rm -f "$STAMP"
  # Scripts contain the absolute path of their Python: in a moved or copied clone they would run the old one's.
  if [ "$(cat .venv/place 2>/dev/null)" != "$PWD" ] || ! .venv/bin/python -c '' 2>/dev/null; then
    "$UV" venv --quiet --clear --python "$PYTHON" .venv
    printf '%s\n' "$PWD" >.venv/place
  fi
  echo "  python: packages of $GROUPS_WANTED, each verified against its lock"
  # The locks are complete, so nothing is left to resolve.
  install --no-deps --require-hashes --build-constraints requirements/build.lock "${locks[@]}"
  install --no-deps --no-build-isolation --editable .
}

# Two concurrent set-ups of one clone would overwrite each other's unfinished files.
lock_clone() {
  mkdir -p .cache
  exec 9>.cache/setup.lock
  if command -v flock >/dev/null && ! flock --nonblock 9; then
    echo "Waiting for another set-up of this clone"
    flock 9
  fi
}

# A class archive halves the start time of drivers. It is valid for one Java, these jars and this path. It is optional,
# so a failure to make it is only reported.
make_class_archive() {
  local archive=.jars/spark.jsa key
  key=$(printf '%s\n' "$PWD" "$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1)" \
    "$(cksum <infra/jars/jars.lock)" "$(cksum <requirements/runtime.lock)")
  if [ "$(cat "$archive.for" 2>/dev/null)" = "$key" ]; then return; fi
  echo "  classes: making the class archive for a faster start of Spark, half a minute"
  rm -f "$archive" "$archive.for"
  if .venv/bin/python -m spark_jobs.jobs.class_archive infra/spark/rehearsal.jsonl "$PWD/$archive" >.cache/archive.log 2>&1 &&
    [ -s "$archive" ]; then
    printf '%s\n' "$key" >"$archive.for"
  else
    rm -f "$archive"
    echo "  classes: no archive was made, drivers start slower (see .cache/archive.log); make setup tries again"
  fi
}

# Before anything is fetched.
require_java() {
  command -v "${JAVA_HOME:+$JAVA_HOME/bin/}java" >/dev/null && return
  printf 'headrace: %s\n  → %s\n' "no Java found (JAVA_HOME=${JAVA_HOME:-not set}); nothing was installed" \
    "install a JDK 17 or newer (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one" >&2
  exit 1
}

main() {
  lock_clone
  DONE=$(cat "$STAMP" 2>/dev/null || true)
  GROUPS_WANTED=$(selected_groups "$@")
  GROUPS_WANTED=${GROUPS_WANTED% }
  local now
  now=$(fingerprint)
  if [ "$now" = "$DONE" ] && [ -x .venv/bin/headrace ]; then
    .venv/bin/python -m infra.jars.fetch
    make_class_archive
    return
  fi
  echo "Setting up in $PWD: Python packages ($GROUPS_WANTED), then jars; the first time 2 to 5 minutes and 2 GB, later seconds"
  require_java
  # shellcheck source=infra/uv.sh
  . infra/uv.sh
  install_python_packages
  .venv/bin/python -m infra.jars.fetch
  make_class_archive
  printf '%s\n' "$now" >"$STAMP"
  echo "Set up: .venv/bin/headrace --help"
}

main "$@"
