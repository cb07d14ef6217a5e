# Sourced: `find_tools` finds Python and uv, and leaves their paths in PYTHON and UV. Working folder: the clone.
# uv is taken from PATH if it is the locked version; else it is installed, pinned with hashes, into an environment below .cache/.
# On a machine without one of these Pythons uv fetches the last of them into .cache/python.
PYTHONS=${PYTHONS:-3.11 3.12 3.13}

die() { printf 'headrace: %s\n  → %s\n' "$1" "$2" >&2; exit 1; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

is_supported() { case " $PYTHONS " in *" $(version_of "$1") "*) ;; *) false ;; esac; }

# PYTHON may be a path, a name on PATH, or a version. Empty afterwards: uv has to fetch one.
find_python() {
  local wanted=${PYTHON:-} candidate
  case " $PYTHONS " in *" ${wanted:-none} "*) FETCHED=$wanted wanted=python$wanted ;; *) FETCHED=${PYTHONS##* } ;; esac
  if [ -n "$wanted" ] && version_of "$wanted" >/dev/null && ! is_supported "$wanted"; then
    die "PYTHON=$PYTHON is Python $(version_of "$wanted"), and ${PYTHONS// /, } are supported; nothing was installed" \
      "name another: make setup PYTHON=3.13; or leave PYTHON out"
  fi
  PYTHON=
  for candidate in ${wanted:-python3 python $(printf 'python%s ' $PYTHONS)}; do
    if command -v "$candidate" >/dev/null && is_supported "$candidate"; then PYTHON=$(command -v "$candidate"); return; fi
  done
  case $wanted in */*) die "PYTHON=$wanted is no Python; nothing was installed" "name one, or a version: make setup PYTHON=3.13" ;; esac
}

find_uv() {
  local locked stamp any
  locked=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements/uv.lock)
  if command -v uv >/dev/null && [ "$(uv --version 2>/dev/null | cut -d' ' -f2)" = "$locked" ]; then UV=$(command -v uv); return; fi
  stamp=.cache/uv/$(cksum <requirements/uv.lock | tr ' ' -)
  UV=$PWD/.cache/uv/bin/uv
  if [ -e "$stamp" ] && "$UV" --version >/dev/null 2>&1; then return; fi
  any=${PYTHON:-$(command -v python3 || true)}
  [ -n "$any" ] || die "no Python found on PATH, not even one that installs uv; nothing was installed" \
    "install Python 3.11, 3.12 or 3.13 (Debian: apt-get install python3 python3-venv), or uv $locked"
  echo "  uv: $locked is not on PATH, fetching it from PyPI into .cache/uv"
  "$any" -m venv --clear .cache/uv ||
    die "Python cannot make a virtual environment" "install its venv module (Debian: apt-get install python3-venv)"
  .cache/uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock ||
    die "uv could not be fetched from PyPI" "check the network, then make setup again: it continues where it stopped"
  touch "$stamp"
}

fetch_python() {
  [ -z "$PYTHON" ] || return 0
  echo "  python: none that is supported is on PATH, uv fetches $FETCHED into .cache/python"
  export UV_PYTHON_INSTALL_DIR=$PWD/.cache/python
  "$UV" python install --quiet --no-bin "$FETCHED" ||
    die "uv could not fetch Python $FETCHED" "install Python ${PYTHONS// /, } yourself, then make setup; or name it: make setup PYTHON=/path"
  PYTHON=$("$UV" python find --managed-python "$FETCHED")
}

find_tools() {
  find_python
  find_uv
  fetch_python
  export UV_PYTHON_DOWNLOADS=never
}
