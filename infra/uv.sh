# Sourced: finds Python 3.11 and uv, and leaves their paths in PYTHON and UV. Working folder: the clone.
# uv is taken from PATH if it is the locked version; else it is installed, pinned with hashes, into an environment below .cache/.

die() { printf 'headrace: %s\n  → %s\n' "$1" "$2" >&2; exit 1; }

is_python_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ] && ! is_python_311 "$PYTHON"; then
    die "Python 3.11 is needed, and PYTHON=$PYTHON is $("$PYTHON" --version 2>&1 || true); nothing was installed" \
      "name a Python 3.11: make setup PYTHON=/path/to/python3.11; or leave PYTHON out, to use the one on PATH"
  fi
  for candidate in "${PYTHON:-}" python3.11 python3 python; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null && is_python_311 "$candidate"; then
      PYTHON=$(command -v "$candidate")
      return
    fi
  done
  die "no Python 3.11 found on PATH; nothing was installed" \
    "install it (Debian: apt-get install python3.11 python3.11-venv), or name it: make setup PYTHON=/path/to/python3.11"
}

find_uv() {
  local locked stamp
  locked=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements/uv.lock)
  if command -v uv >/dev/null && [ "$(uv --version 2>/dev/null | cut -d' ' -f2)" = "$locked" ]; then UV=$(command -v uv); return; fi
  stamp=.cache/uv/$(cksum <requirements/uv.lock | tr ' ' -)
  UV=$PWD/.cache/uv/bin/uv
  if [ -e "$stamp" ] && "$UV" --version >/dev/null 2>&1; then return; fi
  echo "  uv: $locked is not on PATH, fetching it from PyPI into .cache/uv"
  "$PYTHON" -m venv --clear .cache/uv ||
    die "Python cannot make a virtual environment" "install its venv module (Debian: apt-get install python3.11-venv)"
  .cache/uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock ||
    die "uv could not be fetched from PyPI" "check the network, then make setup again: it continues where it stopped"
  touch "$stamp"
}

find_python
find_uv
export UV_PYTHON_DOWNLOADS=never
