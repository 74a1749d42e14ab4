#!/usr/bin/env bash
# The tests, from a fresh clone.
# usage: bash scripts/test.sh [-m quick] [pytest arguments]
#   without arguments      all but the slow ones and the benchmarks, two files at a time (about 11 minutes)
#   -m quick [arguments]   the packages without training runs, two files at a time (under two minutes)
#   arguments              what they say, in one process
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/install.sh"
install
cd "$REPOSITORY"
# In the order of the files: the long ones under tests/pipelines begin early, and the short ones fill what is left.
case "$*" in
    "" | "-m quick"*) set -- "$@" -n 2 --dist loadfile --no-loadscope-reorder ;;
esac
exec "$PYTHON" -m pytest "$@"
