#!/usr/bin/env bash
# Lint, types and tests, from a fresh clone.
# usage: bash scripts/test.sh [-m quick] [pytest arguments]
#   without arguments      ruff, mypy, then all tests but the slow ones and the benchmarks, two files at a time
#   -m quick [arguments]   ruff, mypy, then the packages without training runs, two files at a time
#   arguments              the tests that they choose, in one process, and nothing else
set -euo pipefail
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/install.sh"
install
cd "$REPOSITORY"
unset PYTHONDONTWRITEBYTECODE # so that the many processes of the tests compile a module once
case "$*" in
    "" | "-m quick"*)
        "$PYTHON" -m ruff check .
        "$PYTHON" -m ruff format --check .
        "$PYTHON" -m mypy
        # In the order of tests/conftest.py: the long files begin early, and the short ones fill the gaps.
        set -- "$@" -n 2 --dist loadfile --no-loadscope-reorder
        ;;
esac
exec "$PYTHON" -m pytest "$@"
