#!/usr/bin/env bash
# The tests, from a fresh clone: all of the quick ones, two files at a time; or with pytest arguments what these say.
# usage: bash scripts/test.sh [pytest arguments]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install
cd "$REPOSITORY"
# In the order of the files: the long ones under tests/pipelines begin early, and the short ones fill what is left.
[ $# -gt 0 ] || set -- -n 2 --dist loadfile --no-loadscope-reorder
exec "$PYTHON" -m pytest "$@"
