# Sourced by the other scripts: sets REPOSITORY and PYTHON; install() fills .venv, once.

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=$REPOSITORY/.venv/bin/python

find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or 3.12 on the PATH; mindspore needs one of them" >&2
    return 1
}

# Do nothing if this pyproject.toml was installed before, in this folder: a .venv that was moved or copied names the old
# folder. The mark is written last, so that an interrupted installation is done again.
install() {
    local wanted mark=$REPOSITORY/.venv/.installed python
    wanted="$(cksum <"$REPOSITORY/pyproject.toml") $REPOSITORY"
    if [ -x "$PYTHON" ] && [ "$(cat "$mark" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    echo "installing into $REPOSITORY/.venv (about 3 GB, a few minutes; only the first time)" >&2
    if [ ! -x "$PYTHON" ]; then
        python=$(find_python) || return
        "$python" -m venv "$REPOSITORY/.venv" || return
    fi
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --editable "$REPOSITORY[test]" || return
    echo "$wanted" >"$mark"
}
