#!/usr/bin/env bash
# Lint, types and tests, from a fresh clone.
# usage: bash scripts/test.sh [-m quick] [pytest arguments]
#   without arguments      ruff, mypy, then all tests except slow ones and benchmarks, three files at a time
#   -m quick [arguments]   ruff, mypy, then the tests of packages without training runs, three files at a time
#   arguments              only the tests that they choose, in one process
set -euo pipefail
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/install.sh"
install
cd "$REPOSITORY"
unset PYTHONDONTWRITEBYTECODE # so that the tests' many processes compile each module once
case "$*" in
    "" | "-m quick"*)
        "$PYTHON" -m ruff check .
        "$PYTHON" -m ruff format --check .
        "$PYTHON" -m mypy
        # In the order of tests/conftest.py: the long files begin early, and the short ones fill the gaps.
        set -- "$@" -n 3 --dist loadfile --no-loadscope-reorder
        ;;
esac
exec "$PYTHON" -m pytest "$@"
