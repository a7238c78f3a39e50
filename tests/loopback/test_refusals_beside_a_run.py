"""Who knocks at a run that goes on and may not come in is told why, and the run goes on and finishes."""

import asyncio
import contextlib
import re
import shutil
import socket

import pytest
import zmq
from tests.loopback.parties import Recorder, open_house
from tests.loopback.programs import START_S, VERDICT_S, Program, Programs

from brigade.wire.dialer import dial
from brigade.wire.endpoint import Endpoint, parse_endpoint
from brigade.wire.identity import new_key_pair
from brigade.wire.invite import Invite
from brigade.wire.network import Network
from brigade.wire.session_events import SessionOptions
from brigade.wire.session_packets import Versions

pytestmark = pytest.mark.slow

STEPS = 400


class GoingRun:
    """A coordinator and two nodes that train slowly until the module ends, and then as fast as they can."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        training = {"max_steps": STEPS, "batch_size": 2, "microbatches": 1}
        self.coordinator = programs.ready(programs.write_run(training=training))
        self.nodes = [programs.join("ada"), programs.join("grace")]
        self.coordinator.expect(r"^step 1/")
        (programs.gate / "slow").touch()

    def join(self, name: str, *flags: object, **how: object) -> Program:
        return self.programs.join(name, *flags, **how)

    def assert_goes_on(self) -> None:
        """Two steps are committed from now on."""
        now = len(self.coordinator.screen)
        first = int(self.coordinator.expect(r"^step (\d+)/", after=now)[1])
        self.coordinator.expect(rf"^step {first + 1}/", after=now)

    def finish(self) -> None:
        (self.programs.gate / "slow").unlink()
        assert self.coordinator.expect_end(60.0) == 0, self.coordinator.story
        assert f"all {STEPS} steps are done" in self.coordinator.screen
        for node in self.nodes:
            assert node.expect_end() == 0, node.screen


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with Programs(tmp_path_factory.mktemp("beside")) as programs:
        run = GoingRun(programs)
        yield run
        run.finish()
        programs.assert_clean()


@pytest.fixture(autouse=True)
def the_run_goes_on(run):
    yield
    run.assert_goes_on()


def refused(node: Program, *patterns: str) -> None:
    """The node ends with exit code 2 and one line that matches all patterns."""
    assert node.expect_end(START_S + VERDICT_S) == 2, node.screen
    assert len(node.errors) == 1, node.screen
    for pattern in patterns:
        assert re.search(pattern, node.errors[0]), node.screen


def changed(invite: Invite, **changes: object) -> str:
    parts = {name: getattr(invite, name) for name in ("addresses", "coordinator_key", "secret", "run_id")}
    return Invite(**parts | changes).text()


def test_an_invite_to_another_run(run):
    now = len(run.coordinator.screen)
    refused(run.join("u", invite=changed(run.programs.invite, run_id="f0" * 8)), "refused", "another run, bench")
    run.coordinator.expect("warning: refused node u from 127.0.0.1 .*another run", after=now)


def test_a_wrong_join_secret(run):
    now = len(run.coordinator.screen)
    refused(run.join("s", invite=changed(run.programs.invite, secret="0" * 32)), "refused", "invite")
    run.coordinator.expect("warning: refused node s from 127.0.0.1 .*invite", after=now)


def test_a_wrong_coordinator_key(run):
    now = len(run.coordinator.screen)
    address = run.programs.invite.addresses[0].removeprefix("tcp://")
    invite = changed(run.programs.invite, coordinator_key=new_key_pair().public)
    refused(run.join("k", invite=invite), address, "another key", "new invite")
    run.coordinator.expect("warning: .*for another key than ours.*invite", after=now)
    run.assert_goes_on()
    # one line, and on a busy machine one more of an address that was gone before it could be read
    assert len(re.findall("^warning: ", run.coordinator.screen[now:], re.MULTILINE)) <= 2


def test_a_revoked_node(run):
    spare = run.join("spare")
    run.coordinator.expect("node spare joined as a spare")
    answer = run.programs.start("revoke", "revoke", "spare", run.programs.run_dir)
    assert answer.expect_end() == 0, answer.screen
    refused(spare, "revoked")
    run.coordinator.expect("spare.* has revoked this node")
    now = len(run.coordinator.screen)
    refused(run.join("spare"), "not admit", "has revoked this node")
    run.coordinator.expect("warning: .*not admitted", after=now)


def test_a_state_directory_that_was_copied(run):
    first = run.join("original")
    run.coordinator.expect("node original joined as a spare")
    state = run.programs.home / "state" / "brigade" / "nodes"
    shutil.copytree(state / "original", state / "copy")
    now = len(run.coordinator.screen)
    refused(run.join("copy"), "node original with this identity is alive", "node.key")
    run.coordinator.expect("warning: refused node copy .*with this identity is alive", after=now)
    assert first.process.poll() is None, first.screen
    assert not first.errors
    first.process.terminate()
    assert first.expect_end() == 0, first.screen


def test_nothing_and_nobody_at_the_address(run):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = run.join("n", invite=changed(run.programs.invite, addresses=(f"tcp://127.0.0.1:{port}",)))
    nowhere = run.join("w", invite=changed(run.programs.invite, addresses=("tcp://no-such-host.invalid:7700",)))
    refused(nobody, f"127.0.0.1:{port}", "refused")
    refused(nowhere, "no-such-host.invalid", "cannot be resolved")


# --- strangers --------------------------------------------------------------------------------------------------------


NULL_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
# Strangers come from addresses of their own: each is reported once a minute. Of a connection that is closed before
# anybody looks, the system tells no address, or that of the next one.
HALF_OPEN, SOMEBODY = r"127\.0\.0\.2", r"(127\.0\.0\.\d|an unknown address)"


def plaintext_dealer(context, port):
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.connect(f"tcp://127.0.0.4:0;127.0.0.1:{port}")
    dealer.send(b"let me in")


def test_strangers_at_every_port(run):
    parties = [run.coordinator, *run.nodes]
    doors = [(party, port) for party in parties for port in party.ports]
    assert len(doors) == 5, "control, pulse and bulk, and a data port each"
    starts = {party.name: len(party.screen) for party in parties}

    def expect_everywhere(said):
        for party, port in doors:
            where = said.format(f"127.0.0.1:{port}")
            party.expect(f"^warning: refused: {where}", START_S + VERDICT_S, after=starts[party.name])

    with contextlib.ExitStack() as stack, zmq.Context() as context:

        def knock(source, port, says=b""):
            knocker = stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(source, 0)))
            knocker.sendall(says)

        for _, port in doors:
            knock("127.0.0.2", port)
            knock("127.0.0.3", port, b"GET / HTTP/1.1\r\nHost: brigade\r\n\r\n")
            knock("127.0.0.3", port, bytes(range(256)) * 40)
        expect_everywhere(f"{SOMEBODY} connected to {{}} and did not speak our protocol")
        for _, port in doors:
            knock("127.0.0.4", port, NULL_GREETING)
            plaintext_dealer(context, port)
        expect_everywhere(f"{SOMEBODY} came to {{}} without encryption")
        expect_everywhere(f"{HALF_OPEN} connected to {{}} and did not complete the handshake")
        context.destroy(linger=0)


def test_a_newer_node_is_told_both_versions_by_both_sides(run):
    now = len(run.coordinator.screen)

    async def main():
        network, recorder = Network(), Recorder()
        invite = run.programs.invite
        endpoint = parse_endpoint(invite.addresses[0])
        dial(
            network,
            new_key_pair(),
            endpoint,
            invite.coordinator_key,
            recorder,
            options=SessionOptions(versions=Versions(7, 9)),
        )
        try:
            return await recorder.until_closed(VERDICT_S)
        finally:
            await network.close()

    verdict = asyncio.run(main())
    assert verdict.code == "version"
    for told in (verdict.reason, run.coordinator.expect("^warning: .*no version in common", after=now)[0]):
        assert "version 1" in told
        assert "versions 7 to 9" in told


def test_a_newer_coordinator_is_told_both_versions_by_both_sides(run):
    async def main():
        async with open_house(SessionOptions(versions=Versions(7, 9))) as house:
            address = Endpoint("127.0.0.1", house.port).address
            invite = Invite(addresses=(address,), coordinator_key=house.keys.public, secret="5e" * 16, run_id="0")
            house.listener._admits = lambda _: True
            house.network._domains = {
                name: (lambda _: True, told) for name, (_, told) in house.network._domains.items()
            }
            node = run.join("old", invite=invite.text())
            _, verdict = await house.refusal("version")
            await asyncio.to_thread(refused, node, "version 1", "versions 7 to 9")
            return verdict

    reason = asyncio.run(main()).reason
    assert "version 1" in reason
    assert "versions 7 to 9" in reason
