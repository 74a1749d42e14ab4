"""Every problem at once."""

from pathlib import Path

import pytest

from dimred.build.preflight import Problems, check_memory, check_space
from dimred.errors import ConfigError, DataError


def test_all_problems_are_one_error_and_one_problem_is_one_line() -> None:
    problems = Problems()
    problems.refuse()
    with problems.noted():
        raise DataError("no data")
    with pytest.raises(ConfigError, match=r"^no data$"):
        problems.refuse()
    with problems.noted():
        raise ConfigError("no space")
    with pytest.raises(ConfigError, match=r"^2 problems:\n  1\. no data\n  2\. no space$"):
        problems.refuse()


def test_space_and_memory(tmp_path: Path) -> None:
    check_space(tmp_path / "not" / "yet", 1000, "the run")
    with pytest.raises(ConfigError, match=r"MB free; the run takes up to 1,000,000,000,000 MB"):
        check_space(tmp_path / "not" / "yet", 10**18, "the run")
    source = tmp_path / "meminfo"
    source.write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    check_memory(1_000_000, "the basis", source)
    with pytest.raises(ConfigError, match="the basis needs 2 MB of memory, 1 MB are available"):
        check_memory(2_000_000, "the basis", source)
    check_memory(10**18, "the basis", tmp_path / "nowhere")
