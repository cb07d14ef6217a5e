#!/usr/bin/env bash
# Set-up of a clone: bash infra/setup.sh GROUP...   (groups: runtime dev quality airflow; runtime is always in)
# Writes: .venv/, .jars/ (with the class archive), .cache/.  Nothing outside the clone but the caches of uv and of the jars.
# Guarantee: the stamp is written last and names locks, place and Python; anything else runs the set-up again.
# After an interruption: run it again; what was downloaded is in the caches.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

STAMP=.venv/headrace-setup

# The groups asked for and those installed before, in the order of their locks, each once.
wanted_groups() {
  local group
  for group in "$@"; do
    [ -f "requirements/$group.lock" ] && [ "$group" != build ] && [ "$group" != uv ] || {
      printf 'headrace: there is no group %s\n  → groups: runtime dev quality airflow\n' "$group" >&2
      return 1
    }
  done
  for group in runtime dev quality airflow; do
    case " runtime $* $(sed -n 's/^groups: //p' "$STAMP" 2>/dev/null) " in *" $group "*) printf '%s ' "$group" ;; esac
  done
}

# What the installation depends on: groups, their locks, our own metadata, the place of the clone.
fingerprint() {
  local group
  printf 'groups: %s\nplace: %s\n' "$GROUPS_WANTED" "$PWD"
  for group in build $GROUPS_WANTED; do printf '%s: %s\n' "$group" "$(cksum <"requirements/$group.lock")"; done
  printf 'project: %s\n' "$(cksum <pyproject.toml)"
}

# uv's own words, less the list of every package.
tidy() { sed -u -e '/^ [-+~] /d' -e 's/^/  /'; }

install() { "$UV" pip install --compile-bytecode --python .venv/bin/python "$@" 2>&1 | tidy; }

install_python_packages() {
  local group locks=(-r requirements/build.lock)
  for group in $GROUPS_WANTED; do locks+=(-r "requirements/$group.lock"); done
  rm -f "$STAMP"
  # Scripts name their Python by its whole path: in a clone that was moved or copied they would run the old one's.
  if [ "$(cat .venv/place 2>/dev/null)" != "$PWD" ] || ! .venv/bin/python -c '' 2>/dev/null; then
    "$UV" venv --quiet --clear --python "$PYTHON" .venv
    printf '%s\n' "$PWD" >.venv/place
  fi
  echo "  python: packages of $GROUPS_WANTED, each verified against its lock"
  # The locks are complete, so nothing is left to resolve.
  install --no-deps --require-hashes --build-constraints requirements/build.lock "${locks[@]}"
  install --no-deps --no-build-isolation --editable .
}

# Two set-ups of one clone at a time would build each other's half-made files.
alone() {
  mkdir -p .cache
  exec 9>.cache/setup.lock
  if command -v flock >/dev/null && ! flock --nonblock 9; then
    echo "Another set-up of this clone is at work, waiting for it"
    flock 9
  fi
}

# Drivers start in half the time with an archive of their classes. It holds for one Java, these jars and this place;
# without it all works, so a failure to make it is told and passed over.
make_class_archive() {
  local archive=.jars/spark.jsa wanted
  wanted=$(printf '%s\n' "$PWD" "$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1)" \
    "$(cksum <infra/jars/jars.lock)" "$(cksum <requirements/runtime.lock)")
  if [ "$(cat "$archive.for" 2>/dev/null)" = "$wanted" ]; then return; fi
  echo "  classes: making the archive with which Spark starts faster, half a minute"
  rm -f "$archive" "$archive.for"
  if .venv/bin/python -m spark_jobs.jobs.class_archive infra/spark/rehearsal.jsonl "$PWD/$archive" >.cache/archive.log 2>&1 &&
    [ -s "$archive" ]; then
    printf '%s\n' "$wanted" >"$archive.for"
  else
    rm -f "$archive"
    echo "  classes: no archive was made, drivers start slower (why: .cache/archive.log); tried again by make setup"
  fi
}

main() {
  alone
  DONE=$(cat "$STAMP" 2>/dev/null || true)
  GROUPS_WANTED=$(wanted_groups "$@")
  GROUPS_WANTED=${GROUPS_WANTED% }
  local now
  now=$(fingerprint)
  if [ "$now" = "$DONE" ] && [ -x .venv/bin/headrace ]; then
    .venv/bin/python -m infra.jars.fetch
    make_class_archive
    return
  fi
  echo "Setting up in $PWD: Python packages ($GROUPS_WANTED), then jars; the first time 2 to 5 minutes and 2 GB, later seconds"
  # shellcheck source=infra/uv.sh
  . infra/uv.sh
  command -v "${JAVA_HOME:+$JAVA_HOME/bin/}java" >/dev/null ||
    die "no Java found (JAVA_HOME=${JAVA_HOME:-not set}); nothing was installed" \
      "install a JDK 17 or newer (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one"
  install_python_packages
  .venv/bin/python -m infra.jars.fetch
  make_class_archive
  printf '%s\n' "$now" >"$STAMP"
  echo "Set up: .venv/bin/headrace --help"
}

main "$@"
