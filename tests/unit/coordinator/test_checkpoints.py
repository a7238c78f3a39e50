"""A checkpoint is whole or it is none, wherever the coordinator dies."""

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from brigade.coordinator import checkpoints
from brigade.coordinator.checkpoint_manifest import (
    MANIFEST_NAME,
    Manifest,
    decode_manifest,
    encode_manifest,
    files_of_blocks,
    parse_wire_name,
)
from brigade.coordinator.checkpoints import PartialCheckpoint, clean_leftovers, find_newest, list_sealed, prune, verify
from brigade.coordinator.collector import Collector
from brigade.coordinator.run_events import CheckpointFailed, CheckpointSealed, PartsStored
from brigade.wire.errors import CheckpointError
from brigade.wire.message_parts import FileSpec

CONTENT = {
    "block-000.safetensors": b"weights of block 0",
    "block-000.optimizer.safetensors": b"moments",
    "block-001.safetensors": b"weights of block 1, longer than the others",
}


def spec_of(name, content):
    return FileSpec(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def make_manifest(steps_done, content=None, run_id="run-1"):
    content = CONTENT if content is None else content
    return Manifest(
        run_id=run_id,
        identity="same",
        steps_done=steps_done,
        attempt=1,
        generation=0,
        tokens_seen=10,
        blocks=2,
        files=tuple(spec_of(name, data) for name, data in content.items()),
    )


def fill(partial, content=None, part=7):
    for name, data in (CONTENT if content is None else content).items():
        for offset in range(0, len(data), part):
            partial.write(name, offset, len(data), data[offset : offset + part])


def seal(folder, steps_done, keep=2, content=None):
    partial = PartialCheckpoint(folder, steps_done)
    fill(partial, content)
    return partial.seal(make_manifest(steps_done, content), keep)


def test_a_sealed_checkpoint_is_found_and_verified(tmp_path):
    size, removed = seal(tmp_path, 40)
    assert removed == ()
    assert size == sum(map(len, CONTENT.values())) + (tmp_path / "step-000040" / MANIFEST_NAME).stat().st_size
    found = find_newest(tmp_path, "run-1")
    assert found.manifest == make_manifest(40)
    assert found.damaged == ()
    assert [p.name for p in tmp_path.iterdir()] == ["step-000040"]


def test_only_the_newest_are_kept(tmp_path):
    for steps_done in (2, 4, 6, 8):
        _, removed = seal(tmp_path, steps_done, keep=2)
    assert list_sealed(tmp_path) == [6, 8]
    assert removed == (4,)


def test_pruning_counts_numbers_and_not_letters(tmp_path):
    for steps_done in (999_999, 1_000_000, 1_000_001):
        seal(tmp_path, steps_done, keep=2)
    assert list_sealed(tmp_path) == [1_000_000, 1_000_001]


class Died(BaseException):
    """The process was killed here."""


def test_killed_at_any_call_to_the_system_a_checkpoint_is_whole_or_none(tmp_path, monkeypatch):
    """Every call that changes the disk is a place to die at; the older checkpoint survives, the newer is whole."""
    calls = 0
    limit = 10_000
    names = {os: ("fsync", "open", "rename", "replace", "mkdir", "unlink", "rmdir")}

    def mortal(function):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls > limit:
                raise Died
            return function(*args, **options)

        return call

    for module, functions in names.items():
        for name in functions:
            monkeypatch.setattr(module, name, mortal(getattr(module, name)))
    for name in ("open", "rename", "mkdir"):
        monkeypatch.setattr(Path, name, mortal(getattr(Path, name)))

    def life(folder):
        seal(folder, 4, keep=1)

    folder = tmp_path / "counting"
    seal(folder, 2)
    calls = 0
    life(folder)
    assert calls > 10
    outcomes = set()
    for limit_now in range(calls + 1):
        folder = tmp_path / f"killed-{limit_now}"
        limit = 10_000
        calls = 0
        seal(folder, 2)
        calls, limit = 0, limit_now
        with suppress(Died):
            life(folder)
        limit, calls = 10_000, 0
        clean_leftovers(folder)
        found = find_newest(folder, "run-1")
        assert found.damaged == ()
        assert found.manifest is not None
        outcomes.add(found.manifest.steps_done)
        assert all(p.name.startswith("step-") and "." not in p.name for p in folder.iterdir())
        seal(folder, 6, keep=1)  # and the next one succeeds
        assert list_sealed(folder) == [6]
    assert outcomes == {2, 4}


def test_torn_at_any_byte_the_older_checkpoint_is_taken(tmp_path):
    seal(tmp_path, 2)
    seal(tmp_path, 4)
    newest = tmp_path / "step-000004"
    for name in [*CONTENT, MANIFEST_NAME]:
        whole = (newest / name).read_bytes()
        for size in [*range(len(whole.rstrip())), None]:
            if size is None:
                (newest / name).unlink()
            else:
                (newest / name).write_bytes(whole[:size])
            found = find_newest(tmp_path, "run-1")
            assert found.manifest.steps_done == 2, (name, size)
            assert len(found.damaged) == 1
            assert str(newest / name) in found.damaged[0]
            (tmp_path / "step-000004.damaged").rename(newest)
            (newest / name).write_bytes(whole)
    assert find_newest(tmp_path, "run-1").manifest.steps_done == 4


@pytest.mark.parametrize("name", CONTENT)
def test_a_flipped_bit_anywhere_is_found(tmp_path, name):
    for index in range(len(CONTENT[name])):
        seal(tmp_path, 4)
        path = tmp_path / "step-000004" / name
        data = bytearray(path.read_bytes())
        data[index] ^= 1
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="wrong checksum"):
            verify(path.parent)


def test_what_is_damaged_is_set_aside_and_goes_with_the_next_one(tmp_path):
    seal(tmp_path, 2)
    seal(tmp_path, 4)
    (tmp_path / "step-000004" / MANIFEST_NAME).write_text("{}")
    assert find_newest(tmp_path, "run-1").manifest.steps_done == 2
    assert (tmp_path / "step-000004.damaged").is_dir()
    seal(tmp_path, 4)  # the run comes to the same step again
    assert find_newest(tmp_path, "run-1").manifest.steps_done == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000002", "step-000004"]


def test_a_checkpoint_of_another_run_is_not_taken(tmp_path):
    seal(tmp_path, 2)
    assert find_newest(tmp_path, "run-2").manifest is None


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    seal(tmp_path, 2)
    fill(PartialCheckpoint(tmp_path, 4))
    (tmp_path / "step-000001.deleting").mkdir()
    (tmp_path / "mine").mkdir()
    assert clean_leftovers(tmp_path) == ("step-000001.deleting", "step-000004.partial")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "step-000002"]


@pytest.mark.parametrize(
    "part",
    [
        ("block-000.safetensors", 1, 18, b"x"),  # a gap
        ("block-000.safetensors", 0, 3, b"too long"),
    ],
)
def test_parts_that_do_not_fit(tmp_path, part):
    with pytest.raises(CheckpointError):
        PartialCheckpoint(tmp_path, 2).write(*part)


def test_a_file_that_comes_twice(tmp_path):
    partial = PartialCheckpoint(tmp_path, 2)
    fill(partial)
    with pytest.raises(CheckpointError, match="came twice"):
        partial.write("block-000.safetensors", 0, 1, b"x")


def test_an_incomplete_checkpoint_cannot_be_sealed(tmp_path):
    partial = PartialCheckpoint(tmp_path, 2)
    fill(partial, {"block-000.safetensors": b"weights of block 0"})
    with pytest.raises(CheckpointError, match="not complete"):
        partial.seal(make_manifest(2), 2)
    assert list_sealed(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota"), (errno.EROFS, "read-only")]
)
def test_a_disk_that_refuses_costs_this_checkpoint_only(tmp_path, monkeypatch, number, said):
    seal(tmp_path, 2)
    answers = []
    collector = make_collector(tmp_path, answers)
    monkeypatch.setattr(checkpoints.os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(number, "no")))
    collect(collector, 4)
    (failed,) = [a for a in answers if isinstance(a, CheckpointFailed)]
    assert said in failed.reason
    assert [p.name for p in tmp_path.iterdir()] == ["step-000002"]
    monkeypatch.undo()
    answers.clear()
    collect(collector, 6)
    assert isinstance(answers[-1], CheckpointSealed)


def test_what_is_not_in_the_manifest_is_not_in_the_checkpoint(tmp_path):
    partial = PartialCheckpoint(tmp_path, 2)
    fill(partial)
    partial.write("block-001.optimizer.safetensors", 0, 1, b"x")
    partial.write("block-002.safetensors", 0, 2, b"x")
    partial.seal(make_manifest(2), 2)
    assert {path.name for path in (tmp_path / "step-000002").iterdir()} == {*CONTENT, MANIFEST_NAME}


def test_files_that_are_begun_cost_no_descriptors(tmp_path):
    partial = PartialCheckpoint(tmp_path, 2)
    before = len(psutil.Process().open_files())
    for block in range(20):
        partial.write(f"block-{block:03d}.safetensors", 0, 2, b"x")
    assert len(psutil.Process().open_files()) == before
    assert partial.received_bytes == 20


# --- the collector --------------------------------------------------------------------------------------------------


def make_collector(folder, answers):
    return Collector(folder, folder, answers.append, lambda: 0.0)


def collect(collector, steps_done, order=("announce", "send")):
    collector.open(steps_done, {"ada": range(1), "bob": range(1, 2)})
    stages = {
        0: ("ada", ["block-000.safetensors", "block-000.optimizer.safetensors"]),
        1: ("bob", ["block-001.safetensors"]),
    }
    for stage, (node, names) in stages.items():
        for what in order:
            if what == "announce":
                collector.expect(steps_done, stage, tuple(spec_of(name, CONTENT[name]) for name in names))
            else:
                for name in names:
                    collector.write(node, f"checkpoint/{steps_done}/{name}", 0, len(CONTENT[name]), CONTENT[name])
    collector.seal(make_manifest(steps_done), 2)


@pytest.mark.parametrize("order", [("announce", "send"), ("send", "announce")])
def test_announcements_and_parts_may_come_in_any_order(tmp_path, order):
    answers = []
    collect(make_collector(tmp_path, answers), 2, order)
    assert [a for a in answers if isinstance(a, PartsStored)] == [
        PartsStored(steps_done=2, stage=0),
        PartsStored(steps_done=2, stage=1),
    ]
    assert isinstance(answers[-1], CheckpointSealed)
    assert verify(tmp_path / "step-000002") == make_manifest(2)


def test_a_file_that_is_not_what_was_announced_fails_the_checkpoint(tmp_path):
    answers = []
    collector = make_collector(tmp_path, answers)
    collector.open(2, {"ada": range(1)})
    collector.expect(2, 0, (spec_of("block-000.safetensors", b"something else"),))
    collector.write("ada", "checkpoint/2/block-000.safetensors", 0, 5, b"lies!")
    assert [type(a) for a in answers] == [CheckpointFailed]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ("eve", "checkpoint/2/block-000.safetensors"),
        ("ada", "checkpoint/3/block-000.safetensors"),
        ("ada", "checkpoint/2/../../evil"),
        ("ada", "../evil"),
        ("ada", "/etc/passwd"),
        ("ada", "checkpoint/2/.."),
        ("ada", "checkpoint/2/.hidden"),
        ("ada", "checkpoint/2/a/b"),
        ("ada", "checkpoint//x"),
        ("ada", "checkpoint/2/manifest.json"),
        ("ada", "checkpoint/2/a.bin"),
        ("ada", "checkpoint/2/block-001.safetensors"),  # of another stage
        ("ada", "checkpoint/2/block-0000.safetensors"),
        ("ada", "checkpoint/2/block-\u0660\u0660\u0660.safetensors"),  # zeros too
        ("ada", "checkpoint/2/block-000.momentum.safetensors"),
        ("ada", ""),
    ],
)
def test_what_belongs_to_no_checkpoint_is_dropped(tmp_path, node, name):
    answers = []
    collector = make_collector(tmp_path, answers)
    collector.open(2, {"ada": range(1)})
    collector.write(node, name, 0, 1, b"x")
    assert answers == []
    assert [p.name for p in tmp_path.rglob("*")] == ["step-000002.partial"]


def test_names_on_the_wire():
    assert parse_wire_name("checkpoint/40/block-003.safetensors") == (40, "block-003.safetensors")
    assert parse_wire_name("checkpoint/٤/block-003.safetensors") is None


# --- the manifest ---------------------------------------------------------------------------------------------------


def test_a_stage_is_offered_the_files_of_its_blocks():
    names = [file.name for file in files_of_blocks(make_manifest(4), 0, 1)]
    assert names == ["checkpoint/4/block-000.safetensors", "checkpoint/4/block-000.optimizer.safetensors"]


def test_a_manifest_is_read_as_written():
    assert decode_manifest(encode_manifest(make_manifest(4)), "m") == make_manifest(4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.replace('"format": 1', '"format": 2'), "format 2"),
        (lambda t: t.replace("block-001.safetensors", "block-002.safetensors"), "lacks the weights of block 1"),
        (lambda t: t.replace("block-001.safetensors", "../block-001.safetensors"), "outside its folder"),
        (lambda t: t[:-5], "not a checkpoint manifest"),
    ],
)
def test_a_manifest_that_is_not_sound(change, said):
    with pytest.raises(CheckpointError, match=said):
        decode_manifest(change(encode_manifest(make_manifest(4)).decode()).encode(), "m")


def test_there_is_a_warning_when_checkpoints_will_not_fit(tmp_path):
    assert checkpoints.space_warning(tmp_path, 1, 2) == ""
    assert "free, but 2 checkpoints" in checkpoints.space_warning(tmp_path, 1 << 60, 2)


def test_pruning_keeps_what_it_is_told(tmp_path):
    for steps_done in (2, 4, 6):
        seal(tmp_path, steps_done, keep=9)
    assert prune(tmp_path, 1) == (2, 4)
