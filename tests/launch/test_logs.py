"""What the launcher shows of a rank's log."""

from dimred.launch.processes import LogTail

NOISE = (
    "[INFO] DISTRIBUTED(20472,7f01,python):2026-11-21-18:16:39 [tcp_client.cc:367] Start] Event base dispatch success!"
)


def test_whole_lines_are_shown_once_and_without_mindspores_noise(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text("of an earlier run\n")
    tail = LogTail(log)
    with log.open("a") as file:
        for text, expected in [
            ("epoch: 1 st", ""),
            ("ep: 20 loss is 2\nnext", "epoch: 1 step: 20 loss is 2\n"),
            (f" line\n{NOISE}\n[WARNING] PIPELINE(1,7f,python):late\n", "next line\n"),
            ("[ERROR] ME(1:2,MainProcess): it failed\n[WARNING] of my own\n", None),
            ("no end", ""),
        ]:
            file.write(text)
            file.flush()
            tail.show()
            assert capsys.readouterr().out == (text if expected is None else expected)
    tail.show(to_the_end=True)
    assert capsys.readouterr().out == "no end"


def test_a_log_that_can_not_be_read_for_a_moment_ends_nothing(tmp_path, capsys):
    """As on a network disk that is away; here a folder stands in its place."""
    log, away = tmp_path / "train.log", tmp_path / "away"
    log.write_text("")
    tail = LogTail(log)
    log.rename(away)
    log.mkdir()
    tail.show()
    log.rmdir()
    away.write_text("back again\n")
    away.rename(log)
    tail.show()
    assert capsys.readouterr().out == "back again\n"
