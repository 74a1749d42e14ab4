"""The page of growth says what was measured."""

import os
from pathlib import Path

import pytest

from tests.benchmarks import growth
from tests.benchmarks.measured import cost_of, read_and_write


def test_a_power_law_has_its_exponent_as_slope_and_its_peer_as_unit() -> None:
    subject = growth.SUBJECTS["merge"]
    rows = [
        {
            "engine": engine,
            "point": point,
            "took": 1.0,
            "figures": {"seconds": factor * point["megabytes"] ** exponent * noise, "peak": 2e6},
        }
        for point in subject.points
        for engine, factor, exponent in (("dimred merge", 3.0, 1.5), (growth.ONCE, 1.0, 1.0))
        for noise in (0.5, 1.0, 9.0)
    ]
    rows += [{"engine": "a float64 loop", "point": subject.points[0], "took": 1.0, "figures": {}}]  # it failed
    assert growth.table(subject, rows).splitlines()[2:4] == [
        "| 100 | 20 | reading and writing once | 100 | 50 to 900 |  | 2 |",
        "| 100 | 20 | dimred merge | 3000 | 1500 to 27000 | 30.00 | 2 |",
    ]
    assert growth.slopes(subject, rows).splitlines()[2:4] == [
        "| reading and writing once, seconds | megabytes | files 20 | 1.00 | 1.00 |",
        "| dimred merge, seconds | megabytes | files 20 | 1.50 | 1.50 |",
    ]


def test_what_is_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(growth, "run", lambda program, engine, *_: calls.append(engine) or {"seconds": 1.0})
    for _ in range(2):
        growth.begin(tmp_path / "growth.jsonl")
        growth.measure("ranks", tmp_path / "growth.jsonl", tiny=False)
    assert calls == ["prepare", "a step"] * len(growth.SUBJECTS["ranks"].points)


def test_reading_once_asks_for_each_byte(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(9_000_000))
    cost = cost_of(lambda: read_and_write([tmp_path / "file"], tmp_path / "out", 5_000_001))
    assert 9_000_000 <= cost["read"] <= 9_100_000
    assert (tmp_path / "out").stat().st_size == 5_000_001
