"""What a run remembers on disk: one SQLite file, written by the coordinator alone.

Steps are kept by (step, attempt): a step that is trained again after a resume does not overwrite the first row. The
curve and the ledger take, for each step, the row with the highest attempt.
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from brigade.coordinator.run_events import Commit, Evaluation
from brigade.coordinator.run_members import Known
from brigade.coordinator.store_schema import SCHEMA, SCHEMA_VERSION
from brigade.wire.costs import DeviceReport
from brigade.wire.errors import BrigadeError, ConfigError
from brigade.wire.plan import Plan
from brigade.wire.run_spec import RunSpec

STORE_NAME = "run.sqlite"
BUSY_TIMEOUT_S = 5.0


class StoreError(BrigadeError):
    """Something that must be kept could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """The run as it was begun, and as it was last taken up."""

    run_id: str
    name: str
    identity: str
    spec: RunSpec
    attempt: int
    generation: int  # of the newest plan; -1: none


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One life of the coordinator; `state` is None while it lasts, and for ever when it was killed."""

    attempt: int
    first_step: int
    state: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something that a person may want to know."""

    at: float  # seconds since 1970
    kind: str
    node: str
    text: str


class Store:
    """The open file; every method is one transaction, and safe from `kill -9` at any moment."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self._readonly = readonly
        with self._explained(opening=True):
            if readonly:
                self._connection = sqlite3.connect(
                    f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False
                )
            else:
                self._connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
            self._connection.isolation_level = None  # transactions are explicit
            try:
                self._prepare(readonly)
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self, readonly: bool) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION) or (version == 0 and readonly):
            raise ConfigError(
                f"{self.path} has schema version {version}; this version of brigade reads {SCHEMA_VERSION}"
            )
        if readonly:
            return
        damage = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise ConfigError(
                f"{self.path}: it is damaged; restore it, or move the directory away to begin anew ({damage})"
            )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")  # a committed step survives a power failure
        if version == 0:
            with self._transaction():
                for statement in SCHEMA:
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the file; a writer leaves one file, which a reader can open without leaving others beside it."""
        if not self._readonly:
            with suppress(sqlite3.Error):  # somebody reads, or the disk is full: the log beside it stays
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the run ------------------------------------------------------------------------------------------------

    def create_run(self, run_id: str, identity: str, spec: RunSpec) -> None:
        """Write the run down; the file must hold none."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "INSERT INTO run (id, run_id, name, identity, spec, created_at) VALUES (1, ?, ?, ?, ?, ?)",
                (run_id, spec.name, identity, _json(spec), time.time()),
            )

    def load_run(self) -> RunRow | None:
        """Return the run; None in a file that holds none. Raises ConfigError for content that cannot be read."""
        with self._explained(opening=True):
            row = self._connection.execute("SELECT run_id, name, identity, spec FROM run").fetchone()
            if row is None:
                return None
            newest = self._connection.execute("SELECT attempt, spec FROM attempts ORDER BY attempt DESC").fetchone()
            generation = self._connection.execute("SELECT coalesce(max(generation), -1) FROM plans").fetchone()[0]
        try:
            spec = msgspec.json.decode(newest[1] if newest else row[3], type=RunSpec)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self.path} holds a run of another version of brigade: {error}") from error
        attempt = newest[0] if newest else 0
        return RunRow(run_id=row[0], name=row[1], identity=row[2], spec=spec, attempt=attempt, generation=generation)

    def replace_run(self, identity: str, spec: RunSpec) -> None:
        """Let a run in which no step was committed be another training job; its id stays, invites hold it."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "UPDATE run SET name = ?, identity = ?, spec = ?", (spec.name, identity, _json(spec))
            )

    def has_steps(self) -> bool:
        """Tell whether any step was ever committed."""
        with self._explained():
            return bool(self._connection.execute("SELECT EXISTS (SELECT 1 FROM steps)").fetchone()[0])

    def begin_attempt(self, attempt: int, first_step: int, spec: RunSpec) -> None:
        """Write down that training is taken up at this step."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "INSERT INTO attempts (attempt, first_step, spec, began_at) VALUES (?, ?, ?, ?)",
                (attempt, first_step, _json(spec), time.time()),
            )

    def end_attempt(self, attempt: int, state: str, reason: str) -> None:
        """Write down how an attempt ended."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "UPDATE attempts SET ended_at = ?, state = ?, reason = ? WHERE attempt = ?",
                (time.time(), state, reason, attempt),
            )

    # --- nodes, plans -------------------------------------------------------------------------------------------

    def save_node(self, node_id: str, public_key: str, name: str, host: str, device: DeviceReport) -> None:
        """Remember an admitted node, or that it came again."""
        now = time.time()
        with self._explained(), self._transaction():
            self._connection.execute(
                "INSERT INTO nodes (node_id, public_key, name, host, device, first_seen_at, last_seen_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (node_id) DO UPDATE SET"
                " name = excluded.name, host = excluded.host, device = excluded.device,"
                " last_seen_at = excluded.last_seen_at",
                (node_id, public_key, name, host, _json(device), now, now),
            )

    def revoke_node(self, node_id: str, public_key: str) -> None:
        """Remember that a key is no longer admitted."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "INSERT INTO nodes (node_id, public_key, name, host, device, first_seen_at, last_seen_at, revoked_at)"
                " VALUES (?, ?, '', '', '{}', 0, 0, ?)"
                " ON CONFLICT (node_id) DO UPDATE SET revoked_at = excluded.revoked_at",
                (node_id, public_key, time.time()),
            )

    def known_nodes(self) -> list[Known]:
        """Return every node that was ever admitted."""
        with self._explained():
            rows = self._connection.execute("SELECT node_id, name, public_key, revoked_at FROM nodes ORDER BY node_id")
            return [Known(node_id=a, name=b, public_key=c, revoked=d is not None) for a, b, c, d in rows]

    def save_plan(self, plan: Plan, attempt: int) -> None:
        """Write a plan down."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "INSERT INTO plans (generation, attempt, plan, made_at) VALUES (?, ?, ?, ?)",
                (plan.generation, attempt, _json(plan), time.time()),
            )

    def latest_plan(self) -> Plan | None:
        """Return the newest plan."""
        with self._explained():
            row = self._connection.execute("SELECT plan FROM plans ORDER BY generation DESC LIMIT 1").fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=Plan)

    # --- steps --------------------------------------------------------------------------------------------------

    def save_commit(self, commit: Commit) -> None:
        """Write a committed step into the ledger; raises StoreError, and then the step is not committed."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "INSERT INTO steps (step, attempt, generation, loss, gradient_norm, learning_rate, gradient_scale,"
                " skipped, tokens, samples, sample_ids, nodes, duration_s, statistics, committed_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    commit.step,
                    commit.attempt,
                    commit.generation,
                    commit.loss,
                    commit.gradient_norm,
                    commit.learning_rate,
                    commit.gradient_scale,
                    commit.skipped,
                    commit.tokens,
                    len(commit.samples),
                    json.dumps(commit.samples, separators=(",", ":")),
                    commit.nodes,
                    commit.duration_s,
                    _json(commit.statistics),
                    time.time(),
                ),
            )

    def save_evaluation(self, evaluation: Evaluation) -> None:
        """Write a held-out loss down."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "INSERT OR REPLACE INTO evaluations (step, attempt, loss, target_count, evaluated_at)"
                " VALUES (?, ?, ?, ?, ?)",
                (evaluation.step, evaluation.attempt, evaluation.loss, evaluation.target_count, time.time()),
            )

    def save_event(self, kind: str, node: str, text: str) -> None:
        """Keep something that a person may want to know."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "INSERT INTO events (at, kind, node, text) VALUES (?, ?, ?, ?)", (time.time(), kind, node, text)
            )

    def save_checkpoint(self, steps_done: int, attempt: int, size: int) -> None:
        """Note that a checkpoint was sealed; whether it still is there, its folder tells."""
        with self._explained(), self._transaction():
            self._connection.execute(
                "INSERT OR REPLACE INTO checkpoints (steps_done, attempt, size, sealed_at) VALUES (?, ?, ?, ?)",
                (steps_done, attempt, size, time.time()),
            )

    # --- reading ------------------------------------------------------------------------------------------------

    def commits(self) -> Iterator[Commit]:
        """Yield the ledger in order: for each step the row with the highest attempt."""
        yield from self._commits("WHERE attempt = (SELECT max(attempt) FROM steps other WHERE other.step = steps.step)")

    def all_commits(self) -> Iterator[Commit]:
        """Yield every row of every attempt."""
        yield from self._commits("")

    def _commits(self, condition: str) -> Iterator[Commit]:
        with self._explained():
            rows = self._connection.execute(
                "SELECT step, attempt, generation, loss, gradient_norm, learning_rate, gradient_scale, skipped, tokens,"  # noqa: S608 - one of two constants
                f" sample_ids, nodes, duration_s, statistics FROM steps {condition} ORDER BY step, attempt"
            )
            for row in rows:
                yield _as_commit(self.path, row)

    def last_attempt(self) -> AttemptRow | None:
        """Return the newest attempt."""
        with self._explained():
            row = self._connection.execute(
                "SELECT attempt, first_step, state, coalesce(reason, '') FROM attempts ORDER BY attempt DESC LIMIT 1"
            ).fetchone()
        return row and AttemptRow(attempt=row[0], first_step=row[1], state=row[2], reason=row[3])

    def evaluations(self) -> list[Evaluation]:
        """Return the held-out losses in order: for each step the one with the highest attempt."""
        with self._explained():
            rows = self._connection.execute(
                "SELECT step, max(attempt), loss, target_count FROM evaluations GROUP BY step ORDER BY step"
            )
            return [Evaluation(step=a, attempt=b, loss=c, target_count=d) for a, b, c, d in rows]

    def events(self, newest: int = 20) -> list[EventRow]:
        """Return the newest events, oldest of them first."""
        with self._explained():
            rows = self._connection.execute(
                "SELECT at, kind, node, text FROM events ORDER BY id DESC LIMIT ?", (newest,)
            ).fetchall()
            return [EventRow(*row) for row in reversed(rows)]

    # --- inside -------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _explained(self, *, opening: bool = False) -> Iterator[None]:
        """Turn SQLite's errors into one sentence that names the file and what to do."""
        try:
            yield
        except sqlite3.Error as error:
            text = _explain(self.path, error)
            if opening:
                raise ConfigError(text) from error
            raise StoreError(text) from error


def _explain(path: Path, error: sqlite3.Error) -> str:
    reasons: Sequence[tuple[str, str]] = (
        ("locked", "another program holds it open for writing; end that one"),
        ("full", "the disk is full"),
        ("readonly", "it is not writable"),
        ("unable to open", "it cannot be opened: is its directory there and writable?"),
        ("not a database", "it is not a run's database; move it away to begin anew"),
        ("malformed", "it is damaged; restore it, or move the directory away to begin anew"),
        ("no such table", "it is not a run's database; move it away to begin anew"),
        ("disk i/o", "the disk does not work or is full"),
    )
    found = next((reason for word, reason in reasons if word in str(error).lower()), "")
    return f"{path}: {found} ({error})" if found else f"{path}: {error}"


def _as_commit(path: Path, row: Sequence[Any]) -> Commit:
    names = ("step", "attempt", "generation", "loss", "gradient_norm", "learning_rate", "gradient_scale")
    facts = dict(zip(names, row[:7], strict=True))
    facts |= {"skipped": bool(row[7]), "tokens": row[8], "nodes": row[10], "duration_s": row[11]}
    try:
        facts |= {"samples": json.loads(row[9]), "statistics": json.loads(row[12])}
        return msgspec.convert(facts, Commit)
    except ValueError as error:
        raise StoreError(f"{path}: the row of step {row[0]} is damaged ({error})") from error


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
