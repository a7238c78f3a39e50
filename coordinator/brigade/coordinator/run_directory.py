"""The state directory of a coordinator: what lies where, and how a run is begun or taken up in it."""

import hashlib
import json
import os
import secrets
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from brigade.coordinator.checkpoints import clean_leftovers, find_newest
from brigade.coordinator.costs import GivenCosts
from brigade.coordinator.export import CHECKPOINTS_NAME
from brigade.coordinator.file_server import DATA_NAME
from brigade.coordinator.run_file import RunFile, changes, run_identity
from brigade.coordinator.run_state import Beginning
from brigade.coordinator.store import STORE_NAME, RunRow, Store
from brigade.coordinator.wording import counted
from brigade.wire.errors import CheckpointError, ConfigError
from brigade.wire.message_parts import FileSpec

KEY_NAME = "coordinator.key"
SECRET_NAME = "invite.secret"  # noqa: S105 - the name of the file
ADDRESS_NAME = "coordinator.json"
INVITE_NAME = "invite.txt"
RUN_FILE_NAME = "run.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How `brigade up` was asked for a run, so that `--resume` needs no more words."""

    run_file: str = ""  # absolute
    listen: str = ""
    advertise: str = ""
    costs: str = ""  # absolute


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the coordinator of a state directory can be reached."""

    pid: int
    endpoint: str  # host:port of its control socket, as this machine reaches it
    run_id: str
    public_key: str
    asked: Asked = Asked()


@dataclass(frozen=True, slots=True)
class TakenUp:
    """A run that is ready to be led, and what its owner should hear about how it was taken up."""

    beginning: Beginning
    remarks: tuple[tuple[str, str], ...]  # (kind, sentence)


def directory_of(run_file: RunFile, output_dir: Path | None) -> Path:
    """Return the state directory of a run: as asked, as the run file says, or `runs/<name>`."""
    if output_dir is not None:
        return output_dir
    return Path(run_file.spec.output_dir) if run_file.spec.output_dir else Path("runs") / run_file.spec.name


def resume_command(spec_path: Path, output_dir: Path | None) -> str:
    """Return the command that goes on with the run that these arguments of `brigade up` began."""
    words = ["brigade", "up", str(spec_path), "--resume", *(["--output-dir", str(output_dir)] if output_dir else [])]
    return shlex.join(words)


def open_store(directory: Path, *, resume: bool, resume_command: str = "brigade up --resume") -> Store:
    """Open the store of a state directory; `resume_command` is what goes on with a run that lies there.

    Raises ConfigError when a run lies there that is not to be resumed, or none that is.
    """
    path = directory / STORE_NAME
    if resume and not path.exists():
        raise ConfigError(f"there is no run to resume in {directory}; leave out --resume to begin one")
    store = Store(path)
    row = None if resume else store.load_run()
    if row is not None and store.has_steps():
        store.close()
        raise ConfigError(
            f"{directory} holds the run {row.name} already: `{resume_command}` goes on with it;"
            " for another run choose another output_dir"
        )
    return store


def take_up(directory: Path, store: Store, run_file: RunFile, costs: GivenCosts | None = None) -> TakenUp:
    """Begin the run of a run file in a state directory, or take it up at its newest checkpoint.

    `costs` are those that plans are made of; None: nodes measure. Raises ConfigError when the run file describes
    another training job than the one in the directory.
    """
    spec, source = run_file.spec, run_file.data
    data = None if run_file.data_path is None else _describe(run_file.data_path)
    identity = run_identity(spec, data.sha256 if data else "")
    remarks: list[tuple[str, str]] = []
    row = store.load_run()
    if row is None:
        store.create_run(secrets.token_hex(8), identity, spec)
    elif not store.has_steps():
        store.replace_run(identity, spec)
    else:
        remarks += _compare(row, identity, run_file)
    row = store.load_run()
    assert row is not None
    checkpoints_dir = directory / CHECKPOINTS_NAME
    checkpoints_dir.mkdir(exist_ok=True)
    if leftovers := clean_leftovers(checkpoints_dir):
        remarks.append(("cleaned", f"removed unfinished checkpoints: {', '.join(leftovers)}"))
    found = find_newest(checkpoints_dir, row.run_id)
    remarks += [("damaged", text) for text in found.damaged]
    checkpoint = found.manifest
    if checkpoint is not None:
        if checkpoint.identity != row.identity:
            raise CheckpointError(f"the checkpoint of {checkpoint.steps_done} steps is of another training job")
        _check_ledger(store, checkpoint.steps_done)
        remarks.append(("resumed", f"going on from the checkpoint of {counted(checkpoint.steps_done, 'step')}"))
    elif store.has_steps():
        remarks.append(("resumed", "there is no whole checkpoint: beginning again at step 0"))
    attempt = row.attempt + 1
    store.begin_attempt(attempt, checkpoint.steps_done if checkpoint else 0, spec)
    beginning = Beginning(
        run_id=row.run_id,
        spec=spec,
        identity=row.identity,
        attempt=attempt,
        generation=row.generation,
        checkpoint=checkpoint,
        data=data,
        inputs=source.inputs if source else None,
        train_samples=source.train_count if source else None,
        validation_samples=source.validation_count if source else None,
        costs=costs,
    )
    return TakenUp(beginning, tuple(remarks))


def _compare(row: RunRow, identity: str, run_file: RunFile) -> list[tuple[str, str]]:
    forbidden, allowed = changes(row.spec, run_file.spec)
    if forbidden:
        raise ConfigError(
            f"{run_file.path}: {forbidden[0]}; this cannot change in a run that has begun"
            " (for another run choose another output_dir)"
        )
    if row.identity != identity:
        raise ConfigError(
            f"{run_file.path}: data.path: the content of {run_file.data_path} is not what the run began with"
        )
    return [("changed", text) for text in allowed]


def _check_ledger(store: Store, steps_done: int) -> None:
    """Raise CheckpointError when a step of the checkpoint is not in the ledger: somebody has swapped the files."""
    committed = {commit.step for commit in store.commits()}
    missing = [step for step in range(steps_done) if step not in committed]
    if missing:
        raise CheckpointError(
            f"{store.path} knows nothing of step {missing[0]}, but a checkpoint holds {steps_done} steps:"
            " they are not of one run"
        )


def _describe(path: Path) -> FileSpec:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = path.stat().st_size
    except OSError as error:
        raise ConfigError(f"data.path: {path} cannot be read: {error.strerror}") from error
    return FileSpec(name=DATA_NAME, size=size, sha256=digest)


# --- small files ----------------------------------------------------------------------------------------------------


def write_small(path: Path, text: str, *, private: bool = False) -> None:
    """Write a file whole or not at all; a private one can be read by its owner only. Raises ConfigError.

    The caller holds the lock of the directory: a draft that a killed coordinator left is written over.
    """
    partial = path.with_name(f".{path.name}.partial")
    opener: Callable[[str, int], int] = lambda name, flags: os.open(name, flags, 0o600 if private else 0o644)  # noqa: E731
    try:
        with open(partial, "w", encoding="utf-8", opener=opener) as file:
            file.write(text)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def write_address(directory: Path, address: Address) -> None:
    """Write down where the coordinator is."""
    facts = {
        "pid": address.pid,
        "endpoint": address.endpoint,
        "run_id": address.run_id,
        "public_key": address.public_key,
        "asked": asdict(address.asked),
    }
    write_small(directory / ADDRESS_NAME, json.dumps(facts, indent=2) + "\n")


def read_address(directory: Path) -> Address | None:
    """Return where the coordinator of a state directory is or was; None when none has ever listened."""
    try:
        facts = json.loads((directory / ADDRESS_NAME).read_text(encoding="utf-8"))
        return Address(
            pid=int(facts["pid"]),
            endpoint=str(facts["endpoint"]),
            run_id=str(facts["run_id"]),
            public_key=str(facts["public_key"]),
            asked=Asked(**{key: str(value) for key, value in facts.get("asked", {}).items()}),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{directory / ADDRESS_NAME} cannot be read: {error}") from error
