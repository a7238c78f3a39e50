"""The coordinator as a process: sockets, timers, threads and signals around the run core.

It decides nothing: what happens goes to the core as an event, what the core wants is carried out by an outlet.
"""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brigade.coordinator.collector import Collector
from brigade.coordinator.costs import read_costs
from brigade.coordinator.export import CHECKPOINTS_NAME
from brigade.coordinator.file_server import FileServer
from brigade.coordinator.intake import BulkHandler
from brigade.coordinator.ledger_thread import LedgerThread, Written
from brigade.coordinator.listeners import NumberedHandler, Switchboard, listen_at_first, neighbours_of
from brigade.coordinator.mouthpiece import FAREWELL_S, Mouthpiece
from brigade.coordinator.planner import Planner, with_ways
from brigade.coordinator.progress import Display, choose_mode
from brigade.coordinator.run_core import RunCore
from brigade.coordinator.run_directory import (
    INVITE_NAME,
    KEY_NAME,
    RUN_FILE_NAME,
    SECRET_NAME,
    Address,
    Asked,
    TakenUp,
    directory_of,
    open_store,
    read_address,
    resume_command,
    take_up,
    write_address,
    write_small,
)
from brigade.coordinator.run_events import (
    AbortAsked,
    CheckpointSealed,
    CollectParts,
    DropCheckpoint,
    EndRun,
    ExportModel,
    HangUp,
    MakePlan,
    Note,
    OfferFiles,
    OpenCheckpoint,
    RunBegun,
    RunCommand,
    RunEvent,
    SealCheckpoint,
    StopAsked,
    StoreCommit,
    StoreEvaluation,
    StoreNode,
    StorePlan,
    StoreRevocation,
    Tell,
    TimePassed,
)
from brigade.coordinator.run_file import RunFile, read_run_file
from brigade.coordinator.run_membership import Door, Membership
from brigade.coordinator.store import Store
from brigade.wire.admission import Admission
from brigade.wire.drive import Driver
from brigade.wire.endpoint import Endpoint, advertise_hosts, check_host, parse_endpoint
from brigade.wire.identity import load_or_create, load_or_create_secret
from brigade.wire.invite import Invite
from brigade.wire.journal import open_journal
from brigade.wire.keys import KeyPair
from brigade.wire.network import Network
from brigade.wire.network_interfaces import network_interfaces
from brigade.wire.state_lock import StateLock

logger = logging.getLogger(__name__)

LISTEN = "127.0.0.1:7700"  # unless the owner says otherwise


def run_coordinator(
    spec_path: Path,
    *,
    listen: str = "",
    resume: bool = False,
    output_dir: Path | None = None,
    advertise: str = "",
    verbosity: int = 0,
    json_lines: bool = False,
    costs: Path | None = None,
    started: Callable[[Path], None] | None = None,
) -> int:
    """Lead a run to its end and return the exit code: 0 done, 1 failed, 3 stopped before the end, 130 interrupted.

    Without `listen`, `advertise` and `costs` (a file that plans are made of instead of measurements) a run that is
    resumed has those of before. `started` is called with the state directory once nodes can join. Raises ConfigError
    for anything that a person has to change first.
    """
    run_file = read_run_file(spec_path)
    directory = directory_of(run_file, output_dir)
    last = read_address(directory) if resume else None
    asked = Asked(
        run_file=str(spec_path.absolute()),
        listen=listen or (last.asked.listen if last else "") or LISTEN,
        advertise=advertise or (last.asked.advertise if last else ""),
        costs=str(costs.absolute()) if costs else (last.asked.costs if last else ""),
    )
    given = read_costs(Path(asked.costs), run_file) if asked.costs else None
    endpoint = parse_endpoint(asked.listen)
    if asked.advertise:
        check_host(asked.advertise)
    with StateLock(directory):
        open_journal(directory, verbosity=1 if verbosity >= 1 else -1)  # the display shows what happens
        store = open_store(directory, resume=resume, resume_command=resume_command(spec_path, output_dir))
        try:
            keys = load_or_create(directory / KEY_NAME)
            secret = load_or_create_secret(directory / SECRET_NAME)
            taken_up = take_up(directory, store, run_file, given)
            write_small(directory / RUN_FILE_NAME, run_file.text)
        except BaseException:
            store.close()
            raise
        display = Display(
            choose_mode(quiet=verbosity < 0, json_lines=json_lines), show_info=verbosity < 1 or json_lines
        )
        process = CoordinatorProcess(directory, run_file, store, taken_up, keys, secret, display, asked)
        try:
            return asyncio.run(process.lead(endpoint, started))
        finally:
            display.close()


class CoordinatorProcess:
    """One life of a coordinator; `lead` returns when the run has ended."""

    def __init__(
        self,
        directory: Path,
        run_file: RunFile,
        store: Store,
        taken_up: TakenUp,
        keys: KeyPair,
        secret: str,
        display: Display,
        asked: Asked,
    ) -> None:
        self._directory = directory
        self._asked = asked
        self._taken_up = taken_up
        self._keys = keys
        self._secret = secret
        self._display = display
        beginning = taken_up.beginning
        checkpoints_dir = directory / CHECKPOINTS_NAME
        self._known = store.known_nodes()
        self._admission = Admission(
            secret,
            keys.public,
            [node.public_key for node in self._known if not node.revoked],
            [node.public_key for node in self._known if node.revoked],
        )
        self._files = FileServer(checkpoints_dir, run_file.data_path)
        self._switchboard = Switchboard(self._feed)
        self._early: list[RunEvent] = []
        self._driver: Driver[RunEvent, RunCommand] | None = None
        self._core: RunCore | None = None
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Future[EndRun]
        self._interrupts = 0
        self._mouthpiece = Mouthpiece(self._switchboard.connections, self._is_owner)
        self._hurry = asyncio.Event()
        self._ledger = LedgerThread(store, self._answer, self._warn, time.monotonic)
        self._collector = Collector(directory, checkpoints_dir, self._answer, time.monotonic)
        self._planner = Planner(beginning.run_id, beginning.spec, directory, self._answer, self._warn)
        self._outlets: dict[type, Callable[[Any], None]] = {
            Tell: self._mouthpiece.tell,
            HangUp: self._mouthpiece.hang_up,
            MakePlan: lambda c: self._planner.submit(with_ways(c, self._rtt_s)),
            StorePlan: self._write,
            StoreNode: self._write,
            StoreRevocation: self._write,
            StoreCommit: self._write,
            StoreEvaluation: self._write,
            Note: self._note,
            OfferFiles: lambda c: self._files.offer(c.files),
            OpenCheckpoint: lambda c: self._collect(lambda: self._collector.open(c.steps_done, c.nodes)),
            CollectParts: lambda c: self._collect(lambda: self._collector.expect(c.steps_done, c.stage, c.files)),
            SealCheckpoint: lambda c: self._collect(lambda: self._collector.seal(c.manifest, c.keep)),
            DropCheckpoint: lambda c: self._collect(lambda: self._collector.drop(c.steps_done)),
            ExportModel: lambda c: self._collect(lambda: self._collector.export(c.steps_done)),
            EndRun: self._end_run,
        }

    # --- from beginning to end ----------------------------------------------------------------------------------

    async def lead(self, endpoint: Endpoint, started: Callable[[Path], None] | None) -> int:
        """Listen, drive the core until it ends the run, say goodbye, and return the exit code."""
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_future()
        network = Network()
        state, reason = "failed", "the coordinator could not start"
        try:
            await self._open(network, endpoint)
            gc.freeze()  # what has been imported stays: no collection has to look at it while a run goes on
            self._watch_signals()
            if started is not None:
                started(self._directory)
            self._feed(RunBegun())
            ended = await self._end
            state, reason = ended.state, ended.reason
            await self._say_goodbye()
            return ended.exit_code
        finally:
            if self._driver is not None:
                self._driver.stop()
            self._files.close()
            self._planner.close()
            await network.close()
            self._collector.close()
            self._ledger.close(self._taken_up.beginning.attempt, state, reason)

    async def _open(self, network: Network, asked: Endpoint) -> None:
        """Bind the sockets, make the core, and tell where the coordinator is."""
        beginning, admission, keys = self._taken_up.beginning, self._admission, self._keys
        handlers = (
            NumberedHandler("control", self._switchboard),
            NumberedHandler("pulse", self._switchboard),
            BulkHandler(self._files, self._collector, self._loop),
        )
        control = await listen_at_first(
            network, keys, self._control_candidates(asked), admission.may_knock, handlers[0]
        )
        pulse, bulk = [
            await listen_at_first(
                network, keys, neighbours_of(control.endpoint, asked, number), admission.admits, handlers[number]
            )
            for number in (1, 2)
        ]
        door = Door(
            run_id=beginning.run_id,
            coordinator_key=keys.public,
            pulse_port=pulse.endpoint.port,
            bulk_port=bulk.endpoint.port,
        )
        self._core = RunCore(beginning, Membership(door, admission, beginning.spec, self._known))
        self._driver = Driver(WatchedCore(self._core, self._display), self._carry_out, self._time_passed)
        self._publish(control.endpoint)
        for kind, text in self._taken_up.remarks:
            self._note(Note(kind=kind, text=text, level="warning" if kind == "damaged" else "info"))
        early, self._early = self._early, []
        for event in early:
            self._feed(event)

    def _control_candidates(self, asked: Endpoint) -> list[Endpoint]:
        """Return where to listen: an automatic port is the one of the run's last life if that is free."""
        last = read_address(self._directory)
        if asked.port != 0 or last is None:
            return [asked]
        return [Endpoint(asked.host, parse_endpoint(last.endpoint).port), asked]

    def _publish(self, endpoint: Endpoint) -> None:
        """Write the invite and the address, and show them."""
        advertise = self._asked.advertise
        hosts = (advertise,) if advertise else advertise_hosts(endpoint, network_interfaces())
        invite = Invite(
            addresses=tuple(Endpoint(host, endpoint.port).address for host in hosts),
            coordinator_key=self._keys.public,
            secret=self._secret,
            run_id=self._taken_up.beginning.run_id,
        ).text()
        here = "::1" if ":" in endpoint.host else "127.0.0.1"
        local = Endpoint(here, endpoint.port) if endpoint.is_wildcard else endpoint
        address = Address(
            pid=os.getpid(),
            endpoint=str(local),
            run_id=self._taken_up.beginning.run_id,
            public_key=self._keys.public,
            asked=self._asked,
        )
        write_address(self._directory, address)
        write_small(self._directory / INVITE_NAME, invite + "\n", private=True)
        self._display.greet(self._taken_up.beginning.spec.name, str(endpoint), invite)

    def _watch_signals(self) -> None:
        self._loop.add_signal_handler(signal.SIGINT, self._interrupted, "stopped by Ctrl-C")
        self._loop.add_signal_handler(signal.SIGTERM, self._interrupted, "stopped by a signal to end")
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            self._loop.add_signal_handler(signal.SIGHUP, self._interrupted, "stopped: its terminal was closed")

    def _interrupted(self, reason: str) -> None:
        self._interrupts += 1
        self._feed(StopAsked(reason=reason) if self._interrupts == 1 else AbortAsked())

    async def _say_goodbye(self) -> None:
        """Wait until everybody has what was told, or until the owner is impatient."""
        connections = list(self._switchboard.connections.values())
        drains = asyncio.gather(*(connection.drained(FAREWELL_S) for connection in connections))
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait((drains, hurry), return_when=asyncio.FIRST_COMPLETED)
        for waiting in (drains, hurry):
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    # --- events -------------------------------------------------------------------------------------------------

    def _feed(self, event: RunEvent) -> None:
        if self._driver is None:
            self._early.append(event)
        else:
            self._driver.feed(event)

    def _time_passed(self) -> None:
        self._feed(TimePassed())

    def _answer(self, event: RunEvent) -> None:
        """Take the answer of another thread."""
        if isinstance(event, CheckpointSealed):
            self._ledger.note_checkpoint(event.steps_done, self._taken_up.beginning.attempt, event.size)
        self._loop.call_soon_threadsafe(self._feed, event)

    def _warn(self, text: str) -> None:
        """Show a warning of another thread; it is not kept, for it may be about what keeps it."""
        logger.info(text)
        self._loop.call_soon_threadsafe(self._display.note, Note(kind="disk", text=text, level="warning"))

    # --- commands -----------------------------------------------------------------------------------------------

    def _carry_out(self, command: RunCommand) -> None:
        """Let an outlet do it; a command that cannot be carried out ends the run instead of hanging it."""
        try:
            self._outlets[type(command)](command)
        except Exception as error:
            name = type(command).__name__
            logger.exception("%s cannot be carried out", name)
            reason = f"{name} cannot be carried out: {type(error).__name__}: {error}"
            if not isinstance(command, Note):
                self._note(Note(kind="bug", text=reason, level="error"))
            self._end_run(EndRun(exit_code=1, state="failed", reason=reason))

    def _rtt_s(self, node_id: str) -> float | None:
        """Return the round trip to a node, as its control connection tells it."""
        member = self._core.run.membership.members.get(node_id) if self._core is not None else None
        connection = self._switchboard.connections.get(member.control) if member is not None else None
        return None if connection is None else connection.rtt_s

    def _is_owner(self, connection: int) -> bool:
        return self._core is not None and self._core.run.membership.is_owner(connection)

    def _write(self, command: Written) -> None:
        self._ledger.submit(command)

    def _note(self, note: Note) -> None:
        """Keep, log and show; the log takes it as information because the display shows warnings itself."""
        self._ledger.submit(note)
        logger.info(note.text, extra={"kind": note.kind, "node": note.node, "grade": note.level})
        self._display.note(note)

    def _collect(self, work: Callable[[], None]) -> None:
        self._collector.submit(work)

    def _end_run(self, command: EndRun) -> None:
        if command.hurry:
            self._hurry.set()
        if not self._end.done():
            self._end.set_result(command)


class WatchedCore:
    """The run core with somebody who looks after every event; a bug in it ends the run instead of hanging it."""

    def __init__(self, core: RunCore, display: Display) -> None:
        self._core = core
        self._display = display

    def handle(self, event: RunEvent, now: float) -> list[RunCommand]:
        """See `RunCore.handle`."""
        try:
            commands = self._core.handle(event, now)
            self._display.look(self._core.run)
        except Exception as error:
            logger.exception("the run core has a bug")
            reason = f"a bug of the coordinator: {type(error).__name__}: {error}"
            return [
                Note(kind="bug", text=reason, level="error"),
                EndRun(exit_code=1, state="failed", reason=reason),
            ]
        return commands

    def next_deadline(self) -> float | None:
        """See `RunCore.next_deadline`."""
        return self._core.next_deadline()
