#!/usr/bin/env bash
# The tests, from a fresh clone: all of the quick ones, two files at a time; or with pytest arguments what these say.
# usage: bash scripts/test.sh [pytest arguments]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install
cd "$REPOSITORY"
[ $# -gt 0 ] || set -- -n 2 --dist loadfile
exec "$PYTHON" -m pytest "$@"
