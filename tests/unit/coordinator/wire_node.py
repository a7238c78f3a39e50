"""A node that obeys at once over real sockets; its blocks are one number each."""

import asyncio
import hashlib

import numpy as np
from safetensors.numpy import load, save
from tests.unit.coordinator.scripted_node import make_chain, make_device

from brigade.coordinator.run_file import read_run_file
from brigade.partition.batching import Batching
from brigade.wire import messages as m
from brigade.wire.dialer import dial
from brigade.wire.endpoint import Endpoint, parse_endpoint
from brigade.wire.identity import new_key_pair
from brigade.wire.invite import Invite, prove
from brigade.wire.message_parts import FileSpec, StageStatistics

PART_BYTES = 50  # small, so that files come in several parts


class WireNode:
    """Dials like a daemon, trains by adding; `ended` is the RunEnded, `data` what stage 0 fetched."""

    def __init__(self, name, run_dir, network, spec_path):
        self.name, self.network = name, network
        self.keys = new_key_pair()
        self.invite = Invite.parse((run_dir / "invite.txt").read_text())
        self.run = read_run_file(spec_path)
        training = self.run.spec.training
        self.batching = Batching(
            self.run.data.train_count, training.batch_size, training.microbatches, self.run.spec.seed
        )
        self.ended = asyncio.get_running_loop().create_future()
        self.refused = asyncio.get_running_loop().create_future()
        self.weights = 0.0
        self.data = b""
        self.fetching = []
        self.paused_at = None  # a step whose gradients are held back
        self.reached = asyncio.Event()
        address = parse_endpoint(self.invite.addresses[0])
        self.host = address.host
        self.control = self._dial(address)

    def _dial(self, endpoint):
        return dial(self.network, self.keys, endpoint, self.invite.coordinator_key, self)

    # --- Handler ------------------------------------------------------------------------------------------------

    def opened(self, connection):
        if connection is self.control:
            proof = prove(self.invite.secret, self.invite.coordinator_key, self.keys.public)
            connection.send(
                m.Hello(
                    run_id=self.invite.run_id,
                    name=self.name,
                    incarnation="1",
                    proof=proof,
                    device=make_device("here"),
                    data_port=5000,
                )
            )
        elif connection is self.pulse:
            self.beating = asyncio.ensure_future(self._beat())

    def received(self, connection, message, frames):
        handler = getattr(self, f"on_{type(message).__name__}", None)
        if handler is not None:
            handler(message, *frames)

    def closed(self, connection, verdict):
        if connection is self.control and not self.ended.done():
            self.ended.set_result(verdict)

    async def _beat(self):
        while True:
            self.pulse.send(m.Pulse(number=1, incarnation="1", doing="thinking"))
            await asyncio.sleep(0.5)

    def say(self, message):
        self.control.send(message)

    # --- messages -----------------------------------------------------------------------------------------------

    def on_Welcome(self, message):
        self.pulse = self._dial(Endpoint(self.host, message.pulse_port))
        self.bulk = self._dial(Endpoint(self.host, message.bulk_port))

    def on_Refused(self, message):
        self.refused.set_result(message)

    def on_ProfileBlocks(self, message):
        self.say(m.Profiled(chain=make_chain()))

    def on_MeasureLinks(self, message):
        links = tuple(m.LinkReport(to=c.node_id, rtt_s=0.001, bytes_per_s=1e9) for c in message.to)
        self.say(m.LinksMeasured(links=links))

    def on_LoadStage(self, message):
        self.plan, self.stage = message.plan, message.stage
        weights = [f for f in message.checkpoint if "optimizer" not in f.name]
        self.fetching = [*weights[:1], *([message.data] if message.data else [])]
        self._fetch_next()

    def _fetch_next(self):
        self.fetched = b""
        if self.fetching:
            self.bulk.send(m.FileWanted(name=self.fetching[0].name))
            return
        self.say(m.StageLoaded(generation=self.plan.generation, stage=self.stage, parameter_count=1))

    def on_FilePart(self, part, data):
        spec = self.fetching[0]
        assert (part.name, part.offset, part.size) == (spec.name, len(self.fetched), spec.size)
        self.fetched += bytes(data)
        if len(self.fetched) == spec.size:
            assert hashlib.sha256(self.fetched).hexdigest() == spec.sha256
            if spec.name.startswith("data/"):
                self.data = self.fetched
            else:
                self.weights = float(load(self.fetched)["w"][0])
            self.fetching.pop(0)
            self._fetch_next()

    def on_BeginTraining(self, message):
        self.train(message.step)

    def train(self, step):
        if step == self.paused_at:
            self.reached.set()
            return
        last = self.stage == len(self.plan.stages) - 1
        samples = tuple(int(i) for i in self.batching.sample_ids(step)) if last else ()
        self.say(
            m.GradientsReady(
                generation=self.plan.generation, step=step, stage=self.stage, squared_norm=1.0, finite=True,
                loss_sum=self.weights, target_count=len(samples), samples=samples,
            )
        )  # fmt: skip

    def on_ApplyStep(self, order):
        generation, step, stage = order.generation, order.step, self.stage
        self.weights += step + 1
        self.say(m.StepApplied(generation=generation, step=step, stage=stage, statistics=StageStatistics()))
        if order.evaluate and stage == len(self.plan.stages) - 1:
            self.say(m.Evaluated(generation=generation, step=step, loss_sum=1.0, target_count=1))
        if order.save:
            self.save(order)
        if not order.last:
            self.train(step + 1)

    def save(self, order):
        held, files = self.plan.stages[self.stage], []
        data = save({"w": np.array([self.weights], dtype=np.float32)})
        for block in range(held.first_block, held.end_block):
            name = f"checkpoint/{order.step + 1}/block-{block:03}.safetensors"
            files.append(FileSpec(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest()))
            for offset in range(0, len(data), PART_BYTES):
                part = m.FilePart(name=name, offset=offset, size=len(data))
                self.bulk.send(part, [data[offset : offset + PART_BYTES]], 3)
        self.say(m.StateSaved(generation=order.generation, step=order.step, stage=self.stage, files=tuple(files)))

    def on_RunEnded(self, message):
        self.ended.set_result(message)
