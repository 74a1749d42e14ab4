import json

from tests.helpers.commands import dimred_here as dimred


def test_make_then_check(tmp_path):
    dimred(
        "rank-table", "make", "table.json", "--servers", "10.0.0.1,10.0.0.2",
        "--device-ips", "192.168.0.1,192.168.0.2, 192.168.0.3,192.168.0.4", cwd=tmp_path, status=0,
    )  # fmt: skip
    assert json.loads((tmp_path / "table.json").read_text())["server_count"] == "2"
    again = dimred("rank-table", "make", "table.json", "--device-ips", "192.168.0.1", cwd=tmp_path, status=2)
    assert "exists already" in again.stderr
    good = dimred("rank-table", "check", "table.json", "--devices", 4, cwd=tmp_path, status=0)
    assert "rank 3: device 1 (192.168.0.4) of server 10.0.0.2" in good.stdout
    bad = dimred("rank-table", "check", "table.json", "--devices", 8, cwd=tmp_path, status=2)
    assert "it has 4 devices, but --devices is 8" in bad.stderr
