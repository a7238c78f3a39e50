"""The node daemon: joins a run, does what its cores ask for, and leaves in good order.

A shell: the event loop owns every socket, the compute pool the device, the codec pool encoding and files.
"""

import asyncio
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial

import torch

from brigade.node import node_core as nc
from brigade.node.building import StageParts, build_stage, measure_device
from brigade.node.consent import refused_code
from brigade.node.coordinator_links import CoordinatorLinks
from brigade.node.data_links import DataLinks
from brigade.node.device import choose_device, report, set_threads, warm_up
from brigade.node.directory import NodeDirectory, open_directory
from brigade.node.emulated_speed import SpeedSource
from brigade.node.options import NodeOptions
from brigade.node.parcels import Outgoing
from brigade.node.stage_error import StageError
from brigade.node.stage_events import TrainingBegun
from brigade.node.stage_shell import StageShell
from brigade.node.state_files import StateFile, write
from brigade.node.timeline import Label
from brigade.node.timeline_file import Recorder
from brigade.partition.optimizers import check_optimizer
from brigade.wire.encoding import Message
from brigade.wire.endpoint import Endpoint, parse_endpoint
from brigade.wire.errors import BrigadeError, ConfigError, RemoteProtocolError
from brigade.wire.invite import Invite, prove
from brigade.wire.journal import open_journal
from brigade.wire.message_parts import FileSpec
from brigade.wire.messages import Hello, LoadStage, MeasureLinks, ProfileBlocks, Pulse, StateSaved, Welcome
from brigade.wire.network import Network
from brigade.wire.plan import NodeContact
from brigade.wire.verdict import Verdict

log = logging.getLogger(__name__)

INTERRUPT_GRACE_S = 2.0  # with the rest of the way out this stays below five seconds
TERMINATE_GRACE_S = 20.0
FAREWELL_S = 1.0
FAULTS = (1, 2)  # exit codes: the run has failed, the node was refused
COMPUTE_GRACE_S = 0.5
NEIGHBOUR_DEADLINE_S = 20.0
CODEC_THREADS = 2


def run_node(options: NodeOptions) -> int:
    """Join a run and take part until it ends; return the exit code.

    Raises ConfigError for what a person can put right: invite, state directory, device, address.
    """
    invite = Invite.parse(options.invite)
    listen = parse_endpoint(options.listen)
    device = choose_device(options.device)
    directory = open_directory(options.name, options.state_dir)
    try:
        open_journal(directory.path, verbosity=options.verbosity)
        if options.threads is not None:
            set_threads(options.threads, 1)

        async def live(timeline: Recorder) -> tuple[int, bool]:
            daemon = NodeDaemon(options, invite, directory, device, timeline)
            return await daemon.run(listen), daemon.computing

        with closing(Recorder(options.timeline)) as timeline:
            exit_code, computing = asyncio.run(live(timeline))
    finally:
        shutil.rmtree(directory.outgoing, ignore_errors=True)
        directory.lock.release()
    if computing:
        # Python waits for its threads at the end, and user code that hangs would keep the process for ever.
        logging.shutdown()
        os._exit(exit_code)
    return exit_code


class NodeDaemon:
    """Wires cores, pools and sockets of one node together."""

    def __init__(
        self,
        options: NodeOptions,
        invite: Invite,
        directory: NodeDirectory,
        device: torch.device,
        timeline: Recorder,
    ) -> None:
        self._options = options
        self._invite = invite
        self._directory = directory
        self._device = device
        self._timeline = timeline
        self._emulated = SpeedSource(options.emulate) if options.emulate else None
        self._name = directory.name
        self._incarnation = secrets.token_hex(8)
        self._core = nc.NodeCore()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[nc.EndDaemon] = self._loop.create_future()
        self._network = Network()
        self._data = DataLinks(self._network, directory.keys, self._parcel_arrived, self._neighbour_lost)
        source_host = parse_endpoint(options.listen).host
        self._links = CoordinatorLinks(self._network, directory, invite, self, source_host)
        self._compute_pool = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._warming: Future[None] | None = None
        self._codec_pool = ThreadPoolExecutor(CODEC_THREADS, thread_name_prefix="codec")
        self._welcome: Welcome | None = None
        self._stage: StageShell | None = None
        self._building: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._data_port = 0
        self.computing = False  # at the end: something is still being computed

    async def run(self, listen: Endpoint) -> int:
        """Live until the core ends the daemon; return the exit code."""
        try:
            self._data_port = await self._data.listen(listen)
            for number, code, grace_s in (
                (signal.SIGINT, 130, INTERRUPT_GRACE_S),
                (signal.SIGTERM, 0, TERMINATE_GRACE_S),
                (signal.SIGHUP, 0, INTERRUPT_GRACE_S),
            ):
                self._loop.add_signal_handler(number, self._asked_to_leave, number, code, grace_s)
            self._links.join(patience_s=0.0)
            self._warming = self._compute_pool.submit(warm_up)
            end = await self._ended
            (log.error if end.exit_code in FAULTS else log.info)("%s", end.reason)
            await self._links.farewell(FAREWELL_S)
            return end.exit_code
        finally:
            await self._shut_down()

    async def _shut_down(self) -> None:
        self._drop_stage()
        self._links.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await self._network.close()
        idle = self._compute_pool.submit(int)  # behind whatever is still being computed
        self._compute_pool.shutdown(wait=False)
        await asyncio.wait([asyncio.wrap_future(idle)], timeout=COMPUTE_GRACE_S)
        self.computing = not idle.done()
        if self.computing and self._warming is not None and self._warming.done():
            log.warning("a computation does not end; leaving without it")
        self._codec_pool.shutdown(wait=False, cancel_futures=True)

    def _asked_to_leave(self, number: signal.Signals, exit_code: int, grace_s: float) -> None:
        event = nc.LeaveAsked(f"{number.name} at {self._name}", exit_code)
        self._loop.call_later(grace_s, self._feed, event)
        self._feed(event)

    # --- events ---------------------------------------------------------------------------------------------------

    def _feed(self, event: nc.NodeEvent) -> None:
        for command in self._core.handle(event, time.monotonic()):
            self._carry_out(command)

    def hello(self) -> Hello:
        """Return what a new control connection says first."""
        keys, invite = self._directory.keys, self._invite
        return Hello(
            run_id=invite.run_id,
            name=self._name,
            incarnation=self._incarnation,
            proof=prove(invite.secret, invite.coordinator_key, keys.public),
            device=report(self._device, self._options.memory_limit_bytes),
            data_port=self._data_port,
            advertise=self._options.advertise,
            memory_limit_bytes=self._options.memory_limit_bytes,
        )

    def pulse(self, number: int) -> Pulse:
        """Return the heartbeat with this number."""
        core = self._stage.core if self._stage is not None else None
        if core is None:
            return Pulse(number=number, incarnation=self._incarnation, doing=self._core.state.value)
        return Pulse(
            number=number,
            incarnation=self._incarnation,
            step=core.step,
            forwards=core.forwards,
            backwards=core.backwards,
            doing=core.doing(),
        )

    def coordinator_told(self, message: Message) -> None:
        """Take a message of the coordinator."""
        try:
            self._feed(nc.Told(message))
        except RemoteProtocolError as error:
            self._links.hang_up(str(error))

    def coordinator_lost(self, reason: str) -> None:
        """The coordinator cannot be reached any more."""
        self._feed(nc.CoordinatorLost(reason))

    def joining_failed(self, verdict: Verdict) -> None:
        """The coordinator cannot be joined, and trying longer would not help."""
        if not self._ended.done():
            self._ended.set_result(nc.EndDaemon(2, f"cannot join the run ({verdict.code}): {verdict.reason}"))

    def _parcel_arrived(self, from_node: str, message: Message, frames: list[memoryview]) -> None:
        if self._stage is None:
            log.debug("dropped %s: there is no stage here", type(message).__name__)
            return
        try:
            self._stage.arrived(from_node, message, frames)
        except BrigadeError as error:
            core = self._stage.core
            self.fail(StageError(stage=core.stage, step=core.step, what="a neighbour's message", error=str(error)))

    def _neighbour_lost(self, contact: NodeContact, verdict: Verdict) -> None:
        log.info("lost the link to %s: %s", contact.name, verdict.reason)
        if self._stage is None or self._welcome is None:
            return
        # If the neighbour has died, the coordinator finds out by its silence and says so; only a link that is dead
        # between two living nodes is ours to report.
        stage = self._stage
        self._loop.call_later(self._welcome.silence_limit_s + 1.0, self._report_lost_link, stage, contact, verdict)

    def _report_lost_link(self, stage: StageShell, contact: NodeContact, verdict: Verdict) -> None:
        if stage is self._stage:
            what = f"the link to {contact.name}"
            self.fail(StageError(stage=stage.stage, step=stage.core.step, what=what, error=verdict.reason))

    # --- commands of the node core --------------------------------------------------------------------------------

    def _carry_out(self, command: nc.NodeCommand) -> None:
        match command:
            case nc.Tell(message):
                self._links.tell(message)
            case nc.EnterRun(welcome):
                self._enter(welcome)
            case nc.MeasureChain(order):
                self._spawn(self._measure_chain(order))
            case nc.TimeLinks(order):
                self._spawn(self._time_links(order))
            case nc.BuildStage(order):
                self._building = self._spawn(self._build(order))
            case nc.ShowSpare(reason):
                log.info("this node is a spare: %s", reason)
            case nc.BeginStage(step):
                assert self._stage is not None
                self._timeline.moment("begun", step)
                self._stage.handle(TrainingBegun(step))
            case nc.DecideStep(decision):
                assert self._stage is not None
                self._stage.handle(decision)
            case nc.DropStage():
                self._drop_stage()
            case nc.Rejoin(reason):
                log.warning("lost the coordinator (%s); looking for it for %g s", reason, self._options.patience_s)
                self._links.join(patience_s=self._options.patience_s)
            case nc.EndDaemon():
                if not self._ended.done():
                    self._ended.set_result(command)

    def _enter(self, welcome: Welcome) -> None:
        if refused := refused_code(welcome.spec, self._options.trusted):
            self._feed(nc.LeaveAsked(refused, exit_code=2))
            return
        self._welcome = welcome
        self._name = welcome.name
        log.info("joined run %s as %s", welcome.spec.name, welcome.name)
        self._links.enter(welcome)
        try:
            check_optimizer(welcome.spec.training)  # the coordinator, without torch, cannot
        except ConfigError as error:
            self.fail(StageError(stage=-1, step=-1, what="reading the run file", error=str(error)))

    async def _measure_chain(self, order: ProfileBlocks) -> None:
        assert self._welcome is not None
        self._data.admit(order.roster)
        set_threads(self._options.threads, order.colocated)
        measure = partial(
            measure_device, self._welcome.spec, order.inputs, self._device, self._emulated, timed=order.timed
        )
        chain = await self._loop.run_in_executor(self._compute_pool, measure)
        self._feed(nc.ChainMeasured(chain))

    async def _time_links(self, order: MeasureLinks) -> None:
        self._feed(nc.LinksTimed(await self._data.measure(order)))

    async def _build(self, order: LoadStage) -> None:
        assert self._welcome is not None
        plan, files, began = order.plan, self._links.files, time.monotonic()
        self._data.admit([*(stage.contact for stage in plan.stages), *plan.spares])
        files.forget_checkpoints(order.checkpoint)
        checkpoint = [await files.fetch(spec) for spec in order.checkpoint]
        data = await files.fetch(order.data) if order.data is not None else None
        parts: StageParts = await self._loop.run_in_executor(
            self._compute_pool, build_stage, self._welcome.spec, order, checkpoint, data, self._device, self._emulated
        )
        for path in checkpoint:
            shutil.rmtree(path.parent, ignore_errors=True)  # of one step and one plan only
        for stage in parts.linked_stages:
            await self._data.connect(plan.stages[stage].contact, NEIGHBOUR_DEADLINE_S)
        self._stage = StageShell(
            plan=plan,
            stage=order.stage,
            first_step=order.first_step,
            spec=self._welcome.spec,
            compute=parts.compute,
            microbatches=parts.microbatches,
            compute_pool=self._compute_pool,
            codec_pool=self._codec_pool,
            surroundings=self,
            timeline=self._timeline,
        )
        self._timeline.began(plan, order.stage, self._name)
        self._timeline.add(Label("load", order.first_step), began, time.monotonic())
        own = plan.stages[order.stage]
        last = own.end_block - 1
        blocks = f"block {last}" if own.first_block == last else f"blocks {own.first_block} to {last}"
        log.info("stage %d: %s", order.stage, blocks)
        self._feed(nc.StageBuilt(plan.generation, order.stage, parts.compute.parameter_count))

    def _drop_stage(self) -> None:
        if self._building is not None:
            self._building.cancel()
            self._building = None
        if self._stage is not None:
            self._stage.close()
            self._timeline.moment("dropped", self._stage.core.step)
            self._timeline.flush()
            self._stage = None
        self._data.hang_up()

    # --- what a stage needs (Surroundings) ------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Send a message to the coordinator."""
        self._links.tell(message)

    def pass_on(self, stage: int, outgoing: Outgoing, priority: int) -> None:
        """Send an encoded message to the node of another stage."""
        if self._stage is not None:
            contact = self._stage.plan.stages[stage].contact
            self._data.send(contact, outgoing.message, outgoing.frames, priority)

    def save(self, step: int, snapshot: Mapping[str, StateFile]) -> None:
        """Write a snapshot to files in the background, announce and send them."""
        if self._stage is not None:
            self._spawn(self._save(self._stage, step, snapshot))

    async def _save(self, stage: StageShell, step: int, snapshot: Mapping[str, StateFile]) -> None:
        folder = self._directory.outgoing / f"{stage.plan.generation}-{step + 1}"
        written = await self._loop.run_in_executor(self._codec_pool, write, folder, snapshot)
        files = tuple(
            FileSpec(name=f"checkpoint/{step + 1}/{spec.name}", size=spec.size, sha256=spec.sha256) for spec in written
        )
        self.tell(StateSaved(generation=stage.plan.generation, step=step, stage=stage.stage, files=files))
        for spec, file in zip(written, files, strict=True):
            self._links.files.send(folder / spec.name, file.name)
        shutil.rmtree(folder, ignore_errors=True)  # what is mapped stays readable until it is sent

    def fail(self, error: StageError) -> None:
        """Report that the stage cannot go on."""
        log.error("%s", error)
        self._feed(nc.WorkFailed(error.stage, error.step, error.what, error.error))

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, StageError):
            log.debug("work failed", exc_info=error)
            text = str(error) if isinstance(error, BrigadeError) else f"{type(error).__name__}: {error}"
            error = StageError(stage=self._core.stage, step=-1, what=self._core.state.value, error=text)
        self.fail(error)
