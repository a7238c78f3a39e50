import sys

from brigade.cli.curve import draw_png, draw_terminal

TRAIN = [(step, 5.0 - 0.1 * step) for step in range(1, 21)]


def test_the_picture_is_a_png(tmp_path):
    path = tmp_path / "loss.png"
    assert draw_png(path, TRAIN, [(10, 4.2), (20, 3.1)], {"bigram": 2.5})
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_text_has_the_size_that_was_asked_for():
    drawn = draw_terminal(TRAIN, [(20, 3.1)], columns=60, rows=12)
    assert drawn.count("\n") == 11
    assert "o" in drawn
    assert draw_terminal(TRAIN[:1], [], columns=60)


def test_one_curve_does_not_leave_anything_for_the_next():
    first = draw_terminal(TRAIN, [(20, 3.1)], columns=60)
    draw_terminal([(1, 100.0), (2, 90.0)], [], columns=70)
    assert draw_terminal(TRAIN, [(20, 3.1)], columns=60) == first


def test_without_the_libraries_nothing_fails(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "plotext", None)
    assert not draw_png(tmp_path / "loss.png", TRAIN, [], {})
    assert draw_terminal(TRAIN, [], columns=60) is None
