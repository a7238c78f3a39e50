"""What lies in the directory of an experiment is read as it was written, and what cannot be read says why."""

import json

import pytest
from tests.unit.lab.made_up import made_up_lives, made_up_result

from brigade.lab.experiment_files import NODES_DIR, TRACE_NAME, read_experiment, write_report, write_trace
from brigade.node.timeline import to_lines
from brigade.wire.errors import BrigadeError, ConfigError


@pytest.fixture
def directory(tmp_path):
    place = tmp_path / "experiment"
    (place / NODES_DIR).mkdir(parents=True)
    (place / "result.json").write_bytes(made_up_result(3).to_json())
    for life in made_up_lives(3):
        lines = to_lines([life.began, *life.actions])
        (place / NODES_DIR / f"{life.began.node}.timeline").write_bytes(lines)
    return place


@pytest.mark.parametrize("named", ["directory", "file"])
def test_result_and_timelines_are_read(directory, named):
    run = read_experiment(directory if named == "directory" else directory / "result.json")
    assert run.result == made_up_result(3)
    assert list(run.lives) == made_up_lives(3)
    assert (run.title, run.place) == ("made-up", str(directory))


def test_a_prediction_has_a_title_of_its_own(tmp_path):
    (tmp_path / "result.json").write_bytes(made_up_result(2, predicted=True).to_json())
    assert read_experiment(tmp_path).title == "made-up, predicted"


def test_the_trace_lies_beside_the_result(directory):
    path = write_trace(read_experiment(directory))
    assert path == directory / TRACE_NAME
    slices = [event for event in json.loads(path.read_bytes())["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == sum(len(life.actions) for life in made_up_lives(3))


def test_a_result_alone_is_enough(tmp_path):
    file = tmp_path / "mine.json"
    file.write_bytes(made_up_result(2).to_json())
    run = read_experiment(file)
    assert run.lives == ()
    write_report([run], tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no result"),
        (b"{", "is not JSON"),
        (b"[]", "is not the result of an experiment"),
        (b'{"version": 99}', "version 99"),
        (b'{"version": 1, "scenario": 3}', r"\$\.scenario|missing"),
    ],
)
def test_what_is_no_result_is_refused_with_its_name(tmp_path, content, said):
    file = tmp_path / "result.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        read_experiment(tmp_path)
    assert str(file) in str(caught.value)


def test_without_plotly_it_says_what_to_install(directory, monkeypatch):
    monkeypatch.setattr("brigade.lab.experiment_files.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'bucket-brigade\[report\]'"):
        write_report([read_experiment(directory)], directory / "page.html")


def test_a_page_that_cannot_be_written_says_why(directory):
    with pytest.raises(BrigadeError, match="cannot be written"):
        write_report([read_experiment(directory)], directory)
