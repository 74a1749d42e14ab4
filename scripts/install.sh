# Sourced by the other scripts: sets REPOSITORY and PYTHON, and installs into .venv once.

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=$REPOSITORY/.venv/bin/python

find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3 python; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or 3.12 on the PATH; mindspore 2.10 needs one of them" >&2
    return 1
}

# install [EXTRAS]: nothing happens where the same pyproject.toml was installed with the same extras before.
install() {
    local extras=${1:-} wanted stamp=$REPOSITORY/.venv/.installed${1:-} base
    wanted=$(cksum <"$REPOSITORY/pyproject.toml")
    if [ -x "$PYTHON" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    base=$(find_python) || return
    echo "installing into $REPOSITORY/.venv (about 3 GB, a few minutes; only the first time)" >&2
    [ -x "$PYTHON" ] || "$base" -m venv "$REPOSITORY/.venv" || return
    (cd "$REPOSITORY" && "$PYTHON" -m pip install --quiet --disable-pip-version-check --editable ".$extras") || return
    echo "$wanted" >"$stamp"
}
