"""What handling a message costs on this machine, measured in a moment: encoding, sockets, the relay, decoding, threads.

One message after the other travels between two ends in this process, by the code of nodes and of the relay, with
pauses in between as a pipeline has them: what has cooled down meanwhile is slower than in a tight loop.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import torch

from brigade.compression.codec import build_codec
from brigade.lab.assumed import TYPICAL
from brigade.lab.fabric import make_fabric
from brigade.lab.hosts import Place, place_hosts
from brigade.lab.precise_loop import make_precise_loop
from brigade.lab.relay import Relay
from brigade.lab.relay_handle import PORTS, TRIES
from brigade.lab.scenario_spec import HostSpec, LinkSpec
from brigade.node.parcels import Outgoing, Parcel, pack_activation, unpack_activation
from brigade.partition import boundaries
from brigade.partition.prediction import Handling
from brigade.wire.connection import Connection
from brigade.wire.dialer import dial
from brigade.wire.encoding import Message
from brigade.wire.endpoint import Endpoint
from brigade.wire.errors import ConfigError
from brigade.wire.identity import new_key_pair
from brigade.wire.listener import Listener
from brigade.wire.message_parts import Slot
from brigade.wire.network import Network
from brigade.wire.plan import Boundary, NodeContact, Plan, StagePlan
from brigade.wire.verdict import Verdict

WARM_UPS, REPEATS = 4, 60
PAUSE_S = 0.008
# In a lab, nodes, coordinator and relay share the cores, and a step is a sum of many messages: their means over the
# timelines of four scenarios are so much longer than what is measured here alone (docs/results/simulator.md).
ENCODE_SHARED, DECODE_SHARED, WAY_SHARED = 1.35, 1.65, 3.3
USUAL_S = 2.5e-3  # a message here alone, on the machine of those timelines
T = TypeVar("T")


@dataclass(slots=True)
class Passage:
    """When one message was where, in seconds of a steady clock."""

    computed: float = 0.0  # the device was done with the value
    encode_begin: float = 0.0
    encode_end: float = 0.0
    decode_begin: float = 0.0
    decode_end: float = 0.0
    runs: float = 0.0  # the other device begins


def calibrate(boundary: Boundary, samples: int, codec: str) -> Handling:
    """Return what handling costs here for values of this boundary under a codec; takes about a second.

    What cannot be seen from outside a step (turns, the round at its end) is as much slower than usual as messages are.
    """
    with asyncio.Runner(loop_factory=make_precise_loop) as runner:
        passages = runner.run(_passages(boundary, samples, codec))

    def alone(take: Callable[[Passage], float]) -> float:
        # what other programs do meanwhile only makes it longer, sometimes for half a second
        thirds = (passages[third * REPEATS // 3 : (third + 1) * REPEATS // 3] for third in range(3))
        return min(statistics.quantiles((take(each) for each in part), n=4)[0] for part in thirds)

    encode_s = alone(lambda each: each.encode_end - each.encode_begin)
    decode_s = alone(lambda each: each.decode_end - each.decode_begin)
    way_s = (
        alone(lambda each: each.encode_begin - each.computed)
        + alone(lambda each: each.decode_begin - each.encode_end)
        + alone(lambda each: each.runs - each.decode_end)
    )
    times = (encode_s + decode_s + way_s) / USUAL_S
    turn_s = TYPICAL.turn_s * times
    return Handling(
        encode_s=encode_s * ENCODE_SHARED,
        decode_s=decode_s * DECODE_SHARED,
        message_s=max(0.0, way_s * WAY_SHARED - turn_s),  # a turn is part of what follows a message
        turn_s=turn_s,
        round_s=TYPICAL.round_s * times,
        optimizer_s=TYPICAL.optimizer_s * times,
    )


async def _passages(boundary: Boundary, samples: int, codec: str) -> list[Passage]:
    relay, places = _open_relay()
    network = Network()
    near_keys, far_keys = new_key_pair(), new_key_pair()
    far = _End()
    try:
        endpoint = Endpoint(places["far"].inner_host, places["far"].ports[0])
        await Listener(network, far_keys, endpoint, lambda key: key == near_keys.public, far).start()
        outer = Endpoint(places["far"].outer_host, places["far"].ports[0])
        near = _End()
        connection = dial(network, near_keys, outer, far_keys.public, near, source_host=places["near"].inner_host)
        await near.open
        with ThreadPoolExecutor(1) as compute, ThreadPoolExecutor(2) as codecs:
            bench = _Bench(boundary, samples, codec, compute, codecs)
            return [await bench.send(connection, far) for _ in range(WARM_UPS + REPEATS)][WARM_UPS:]
    finally:
        await network.close()
        relay.close()


def _open_relay() -> tuple[Relay, dict[str, Place]]:
    """Return a relay between two hosts that nothing limits; ConfigError where there is no port for it."""
    hosts = [HostSpec(name="near"), HostSpec(name="far")]
    ports = Random().sample(PORTS, TRIES)  # noqa: S311 - no secret
    for port in ports:
        places = place_hosts([host.name for host in hosts], port)
        relay = Relay(places, make_fabric(hosts, LinkSpec(), ()))
        try:
            relay.open()
        except ConfigError:
            if port == ports[-1]:
                raise
        else:
            return relay, places
    raise AssertionError


class _End:
    """One end of a connection."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.open: asyncio.Future[None] = loop.create_future()
        self.messages: asyncio.Queue[tuple[Message, list[memoryview]]] = asyncio.Queue()

    def opened(self, _: Connection) -> None:
        self.open.set_result(None)

    def received(self, _: Connection, message: Message, frames: list[memoryview]) -> None:
        self.messages.put_nowait((message, frames))

    def closed(self, _: Connection, verdict: Verdict) -> None:
        if not self.open.done():
            self.open.set_exception(ConfigError(f"handling cannot be measured here: {verdict.reason}"))


class _Bench:
    def __init__(
        self, boundary: Boundary, samples: int, codec: str, compute: ThreadPoolExecutor, codecs: ThreadPoolExecutor
    ) -> None:
        contact = NodeContact(node_id="", name="", public_key="", endpoint="")
        self._plan = Plan(
            run_id="calibration",
            generation=0,
            stages=(StagePlan(contact=contact, first_block=0, end_block=1),),
            schedule="1f1b",
            microbatches=1,
            train_samples=samples,
            validation_samples=0,
            boundaries=(),
        )
        self._boundary = boundary
        self._samples = samples
        self._codec = build_codec(codec)
        self._compute, self._codecs = compute, codecs
        self._parcel = Parcel(
            boundaries.example(boundary, samples, "cpu"),
            torch.zeros(samples, dtype=torch.long),
            (0,) * samples,
            samples,
        )

    async def send(self, connection: Connection, far: _End) -> Passage:
        """Send one message as a stage does, and return when it was where."""
        passage = Passage()
        _, passage.computed = await self._run(self._compute, lambda: time.sleep(PAUSE_S))
        outgoing, passage.encode_end = await self._run(self._codecs, self._encode, passage)
        connection.send(outgoing.message, outgoing.frames, 1)
        message, frames = await far.messages.get()
        _, passage.decode_end = await self._run(self._codecs, self._decode, passage, message, frames)
        passage.runs, _ = await self._run(self._compute, time.perf_counter)
        return passage

    def _encode(self, passage: Passage) -> Outgoing:
        passage.encode_begin = time.perf_counter()
        return pack_activation(self._plan, Slot(step=0, index=0), self._parcel, self._codec, 0)

    def _decode(self, passage: Passage, message: Any, frames: Sequence[memoryview]) -> None:
        passage.decode_begin = time.perf_counter()
        unpack_activation(message, frames, self._boundary, self._samples)

    @staticmethod
    async def _run(pool: ThreadPoolExecutor, job: Callable[..., T], *arguments: Any) -> tuple[T, float]:
        """Run a job in a pool, and return what it gave and when it was through."""

        def timed() -> tuple[T, float]:
            return job(*arguments), time.perf_counter()

        return await asyncio.get_running_loop().run_in_executor(pool, timed)
