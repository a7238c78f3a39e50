"""What a node did when: lines, files that stay bounded, and what a killed node leaves."""

import json
import time
from pathlib import Path
from threading import Event

import pytest
from msgspec.structs import replace

from brigade.node.timeline import MOST_STAGES, Action, Entry, Label, StageBegan, label, lives, parse_lines, to_lines
from brigade.node.timeline_file import MOST_WAITING, Recorder, TimelineFile, read_timeline
from brigade.wire.errors import ConfigError
from brigade.wire.message_parts import Slot
from brigade.wire.plan import NodeContact, Plan, StagePlan


def began(generation: int = 1, stage: int = 0) -> StageBegan:
    return StageBegan(run_id="r", generation=generation, stage=stage, node="ada", stages=2, at_s=10.0)


def action(index: int, step: int = 0) -> Action:
    return Action("forward", step, index, 11.0 + index, 11.5 + index)


def plan(generation: int) -> Plan:
    contact = NodeContact(node_id="a" * 16, name="ada", public_key="k" * 40, endpoint="tcp://127.0.0.1:7801")
    stage = StagePlan(contact=contact, first_block=0, end_block=1)
    return Plan(
        run_id="r",
        generation=generation,
        stages=(stage, stage),
        schedule="1f1b",
        microbatches=2,
        train_samples=8,
        validation_samples=0,
        boundaries=(),
    )


def test_lines_are_plain_json_and_come_back() -> None:
    sent = Action("sent_activation", 3, 1, 12.0, 12.0, False, 1, 512)
    entries: list[Entry] = [began(), action(0), sent]
    lines = to_lines(entries).splitlines()
    assert json.loads(lines[2]) == {
        "line": "action",
        "kind": "sent_activation",
        "step": 3,
        "index": 1,
        "begin_s": 12.0,
        "end_s": 12.0,
        "other": 1,
        "bytes": 512,
    }
    assert list(parse_lines(b"\n".join(lines))) == entries


def test_half_a_line_and_foreign_lines_are_skipped() -> None:
    data = to_lines([began(), action(0)])
    torn = data + to_lines([action(1)])[:20] + b"\n" + b'{"line":"other"}\n[]\n\xff\n' + to_lines([action(2)])
    assert list(parse_lines(torn)) == [began(), action(0), action(2)]


def test_actions_belong_to_the_stage_before_them_and_a_repeated_stage_line_goes_on_with_it() -> None:
    entries = [action(9), began(1), action(0), began(1), action(1), began(2), action(2)]
    found = lives(entries)
    assert [(life.began.generation, [a.index for a in life.actions]) for life in found] == [(1, [0, 1]), (2, [2])]


@pytest.mark.parametrize(
    ("stage", "stages"), [(10**9, 2 * 10**9), (MOST_STAGES, MOST_STAGES + 1), (3, 3), (-1, 3), (0, 0)]
)
def test_a_stage_that_no_plan_has_is_left_out_with_its_actions(stage: int, stages: int) -> None:
    foreign = replace(began(1), stage=stage, stages=stages)
    own = replace(began(1), stage=0, stages=MOST_STAGES)
    (life,) = lives([own, action(0), foreign, action(1), own, action(2)])
    assert [each.index for each in life.actions] == [0, 2]


def test_a_recorder_writes_wall_clock_seconds_once_a_step(tmp_path: Path) -> None:
    path = tmp_path / "ada.timeline"
    recorder = Recorder(path)
    before = time.time()
    now = time.monotonic()
    recorder.began(plan(4), 1, "ada")
    recorder.add(label("backward", Slot(step=2, index=5)), now, now + 0.25)
    recorder.moment("begun", 2)
    assert path.read_bytes() == b""  # nothing before the step is over
    recorder.close()
    (life,) = read_timeline(path)
    assert (life.began.generation, life.began.stage, life.began.stages, life.began.node) == (4, 1, 2, "ada")
    first, second = life.actions
    assert (first.kind, first.step, first.index) == ("backward", 2, 5)
    assert first.end_s - first.begin_s == pytest.approx(0.25, abs=1e-5)
    assert before - 1 < first.begin_s < before + 1
    assert (second.kind, second.index, second.begin_s) == ("begun", -1, second.end_s)


def test_a_recorder_without_a_file_keeps_nothing() -> None:
    recorder = Recorder(None)
    recorder.began(plan(1), 0, "ada")
    recorder.add(Label("sum", 1), 0.0, 1.0)
    assert not recorder.on
    assert recorder._entries == []
    recorder.close()


def test_a_disk_that_hangs_costs_steps_and_never_memory_or_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = Event()
    monkeypatch.setattr(TimelineFile, "write", lambda *_: hangs.wait())
    recorder = Recorder(tmp_path / "file")
    for step in range(MOST_WAITING + 10):
        recorder.add(Label("sum", step), 0.0, 1.0)
        recorder.flush()
    assert recorder._pool._work_queue.qsize() < MOST_WAITING
    assert [record.getMessage() for record in caplog.records] == [
        "the disk is too slow for the timeline; steps are left out"
    ]
    hangs.set()
    recorder.close()


def test_a_file_is_bounded_and_says_anew_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ada.timeline"
    file = TimelineFile(path, max_bytes=2000)
    file.write([began(1)])
    for index in range(100):
        file.write([action(index)])
    file.close()
    older = tmp_path / "ada.timeline.1"
    assert max(path.stat().st_size, older.stat().st_size) <= 2000
    assert path.read_bytes().startswith(b'{"line":"stage"')
    (life,) = read_timeline(path)
    kept = [each.index for each in life.actions]
    assert kept == list(range(kept[0], 100))
    assert len(kept) > 15


def test_a_node_that_comes_back_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "ada.timeline"
    path.write_bytes(to_lines([began(1), action(0)]) + b'{"line":"act')  # it was killed
    file = TimelineFile(path)
    file.write([began(2), action(1)])
    file.close()
    assert [(life.began.generation, len(life.actions)) for life in read_timeline(path)] == [(1, 1), (2, 1)]


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        Recorder(tmp_path / "nowhere" / "file")


def test_no_file_is_an_empty_timeline(tmp_path: Path) -> None:
    assert read_timeline(tmp_path / "none") == []
