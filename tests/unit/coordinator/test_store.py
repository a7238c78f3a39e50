"""The ledger survives kills and says plainly what is wrong with it."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.coordinator.scripted_fleet import World
from tests.unit.coordinator.scripted_node import make_device, make_spec

from brigade.coordinator.ledger_thread import WARNING_INTERVAL_S, LedgerThread
from brigade.coordinator.run_events import Commit, CommitStored, Evaluation, Note, StoreBroke, StoreCommit, StorePlan
from brigade.coordinator.store import Store, StoreError
from brigade.wire.errors import ConfigError
from brigade.wire.message_parts import StageStatistics

SPEC = make_spec()


def make_commit(step, attempt=1, loss=1.0):
    return Commit(
        step=step,
        attempt=attempt,
        generation=0,
        loss=loss,
        gradient_norm=None,
        learning_rate=0.1,
        gradient_scale=1.0,
        skipped=False,
        tokens=8,
        samples=(3, 1, 2),
        nodes=2,
        duration_s=0.5,
        statistics=(StageStatistics(wait_s=1.0), StageStatistics(forward_bytes=7)),
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


@pytest.fixture
def store(path):
    with Store(path) as store:
        store.create_run("run-1", "same", SPEC)
        yield store


def test_a_run_is_found_again(store, path):
    store.begin_attempt(1, 0, SPEC)
    store.close()
    changed = make_spec(max_steps=99)
    with Store(path) as again:
        row = again.load_run()
        assert (row.run_id, row.name, row.identity, row.attempt, row.generation) == ("run-1", "toy", "same", 1, -1)
        assert row.spec == SPEC
        again.begin_attempt(2, 4, changed)
        assert again.load_run().spec == changed
        assert again.load_run().attempt == 2


def test_an_empty_file_holds_no_run(path):
    with Store(path) as store:
        assert store.load_run() is None


def test_a_commit_comes_back_as_it_was(store):
    store.save_commit(make_commit(0))
    assert list(store.commits()) == [make_commit(0)]


def test_the_curve_takes_the_highest_attempt_and_keeps_the_rest(store):
    for step in range(5):
        store.save_commit(make_commit(step, 1, loss=1.0))
    for step in range(3, 7):
        store.save_commit(make_commit(step, 2, loss=2.0))
    assert [(c.step, c.attempt, c.loss) for c in store.commits()] == [
        (0, 1, 1.0), (1, 1, 1.0), (2, 1, 1.0), (3, 2, 2.0), (4, 2, 2.0), (5, 2, 2.0), (6, 2, 2.0),
    ]  # fmt: skip
    assert len(list(store.all_commits())) == 9


def test_a_step_cannot_be_committed_twice_in_one_attempt(store):
    store.save_commit(make_commit(0))
    with pytest.raises(StoreError):
        store.save_commit(make_commit(0))
    assert len(list(store.all_commits())) == 1


def test_evaluations_plans_nodes_events(store):
    store.save_evaluation(Evaluation(step=3, attempt=1, loss=2.0, target_count=5))
    store.save_evaluation(Evaluation(step=3, attempt=2, loss=1.0, target_count=5))
    assert store.evaluations() == [Evaluation(step=3, attempt=2, loss=1.0, target_count=5)]

    world = World()
    world.join("ada", "bob")
    world.run()
    store.save_plan(world.core.run.line.plan, 1)
    assert store.latest_plan() == world.core.run.line.plan
    assert store.load_run().generation == 0

    store.save_node("id", "key", "ada", "host", make_device("host"))
    store.save_node("id", "key", "bea", "host", make_device("host"))
    store.revoke_node("id", "key")
    assert [(n.node_id, n.name, n.revoked) for n in store.known_nodes()] == [("id", "bea", True)]

    for number in range(30):
        store.save_event("kind", "ada", f"text {number}")
    assert [event.text for event in store.events(2)] == ["text 28", "text 29"]


def test_it_can_be_read_while_it_is_written(store, path):
    store.save_commit(make_commit(0))
    with Store(path, readonly=True) as reader:
        assert len(list(reader.commits())) == 1
        store.save_commit(make_commit(1))
        assert len(list(reader.commits())) == 2
        with pytest.raises(StoreError, match="not writable"):
            reader.save_event("kind", "", "text")


@pytest.mark.parametrize(("content", "said"), [(b"this is no database" * 100, "not a run's database"), (b"", None)])
def test_a_file_that_is_no_database(path, content, said):
    path.write_bytes(content)
    if said is None:
        Store(path).close()
        return
    with pytest.raises(ConfigError, match=said):
        Store(path)


def test_a_torn_file_is_an_error_and_never_another_run(store, path):
    for step in range(200):
        store.save_commit(make_commit(step))
    store.close()
    whole = path.read_bytes()
    for size in range(0, len(whole), 512):
        path.write_bytes(whole[:size])
        try:
            with Store(path) as torn:
                row = torn.load_run()
                assert row is None or row.run_id == "run-1"
                read = list(torn.commits())
                assert [c.step for c in read] == list(range(len(read)))
        except (ConfigError, StoreError) as error:
            assert str(path) in str(error)  # noqa: PT017 - either outcome is right
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def test_a_closed_store_is_one_file_and_looking_into_it_leaves_no_other(store, path):
    store.begin_attempt(1, 0, SPEC)
    assert len(list(path.parent.glob("run.sqlite*"))) > 1, "the log that a kill leaves"
    store.close()
    with Store(path, readonly=True) as reader:
        assert reader.load_run().attempt == 1
    assert list(path.parent.iterdir()) == [path]


def test_a_store_can_be_closed_while_somebody_reads(store, path):
    store.begin_attempt(1, 0, SPEC)
    with Store(path, readonly=True) as reader:
        rows = reader._connection.execute("SELECT * FROM attempts")
        rows.fetchone()
        store.close()
        assert reader.load_run().attempt == 1


def test_another_schema_is_refused(store, path):
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="schema version 99"):
        Store(path)


def test_a_locked_file_is_told_as_such(store, path, monkeypatch):
    monkeypatch.setattr("brigade.coordinator.store.BUSY_TIMEOUT_S", 0.0)
    other = Store(path)
    other._connection.execute("BEGIN IMMEDIATE")
    late = Store(path)
    with pytest.raises(StoreError, match="another program holds it open"):
        late.save_event("kind", "", "text")
    late.close()
    other.close()


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="is its directory there and writable"):
        Store(tmp_path / "nowhere" / "run.sqlite")


def test_a_full_disk_is_told_as_such(store):
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    def fill():
        for step in range(10_000):
            store.save_commit(make_commit(step))

    with pytest.raises(StoreError, match="the disk is full"):
        fill()
    kept = len(list(store.commits()))
    store._connection.execute("PRAGMA max_page_count = 100000")
    store.save_commit(make_commit(kept))  # goes on when there is room
    assert len(list(store.commits())) == kept + 1


def test_a_kill_in_the_middle_of_writing_loses_no_committed_step(path):
    script = f"""
import os, sys
sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from brigade.coordinator.store import Store
from tests.unit.coordinator.test_store import make_commit, SPEC
store = Store(Path({str(path)!r}))
store.create_run("run-1", "same", SPEC)
for step in range(100000):
    store.save_commit(make_commit(step))
    print(step, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    told = 0
    for line in process.stdout:
        told = int(line)
        if told == 50:
            break
    process.kill()
    told = max([told, *(int(line) for line in process.stdout.read().split())])
    process.wait()
    process.stdout.close()
    with Store(path) as store:
        steps = [commit.step for commit in store.commits()]
    assert steps == list(range(len(steps)))
    assert len(steps) >= told + 1


def test_the_ledger_thread_tells_what_the_core_must_know(store):
    answers, clock = [], iter([0.0, 1.0, WARNING_INTERVAL_S + 1.0])
    ledger = LedgerThread(store, answers.append, pytest.fail, lambda: next(clock))
    ledger.write(StoreCommit(commit=make_commit(0)))
    assert answers == [CommitStored(step=0)]
    ledger.write(StoreCommit(commit=make_commit(0)))
    assert isinstance(answers[-1], StoreBroke)


def test_what_is_only_history_costs_a_warning_a_minute(store):
    store._connection.execute("DROP TABLE events")
    clock, warnings = iter([0.0, 1.0, WARNING_INTERVAL_S + 1.0]), []
    ledger = LedgerThread(store, pytest.fail, warnings.append, lambda: next(clock))
    for _ in range(3):
        ledger.write(Note(kind="kind", text="text"))
    assert len(warnings) == 2
    assert "history is lost" in warnings[0]


def test_a_plan_that_cannot_be_stored_is_told(store):
    world = World()
    world.join("ada", "bob")
    world.run()
    answers = []
    ledger = LedgerThread(store, answers.append, pytest.fail, lambda: 0.0)
    for _ in range(2):
        ledger.write(StorePlan(plan=world.core.run.line.plan, attempt=1))
    assert [type(answer) for answer in answers] == [StoreBroke]


def test_a_copy_opens_readonly_after_a_kill(store, path, tmp_path):
    """What `kill -9` leaves is the file and its write-ahead log."""
    store.save_commit(make_commit(0))
    target = tmp_path / "copy"
    target.mkdir()
    for file in path.parent.glob("run.sqlite*"):
        shutil.copy(file, target)
    with Store(target / "run.sqlite", readonly=True) as copy:
        assert len(list(copy.commits())) == 1
