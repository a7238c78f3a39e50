"""The loop that drives a core: order of commands, deadlines, errors."""

import asyncio

import pytest

from brigade.wire.drive import Driver


class Echo:
    """Gives the commands that an event lists, and one deadline."""

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self.events: list[object] = []

    def handle(self, event, now):
        self.events.append(event)
        if event == "deadline":
            self.deadline = None
        return list(event) if isinstance(event, tuple) else []

    def next_deadline(self):
        return self.deadline


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 5.0))


def test_events_fed_by_a_command_come_after_the_commands_before_them():
    async def main():
        done = []
        driver = None

        def carry_out(command):
            done.append(command)
            if command == "a":
                assert driver.feed(("c",)) is False

        driver = Driver(Echo(), carry_out, lambda: None)
        assert driver.feed(("a", "b")) is True
        assert driver.feed(()) is False
        assert done == ["a", "b", "c"]

    run(main())


def test_the_deadline_wakes_its_owner_once():
    async def main():
        loop = asyncio.get_running_loop()
        core = Echo(loop.time() + 0.02)
        woken = asyncio.Event()
        at = []

        def wake():
            at.append(loop.time())
            driver.feed("deadline")
            woken.set()

        deadline = core.deadline
        driver = Driver(core, lambda _: None, wake)
        driver.feed("begin")
        await woken.wait()
        assert at[0] >= deadline
        assert core.events == ["begin", "deadline"]

    run(main())


def test_an_earlier_deadline_replaces_a_later_one():
    async def main():
        loop = asyncio.get_running_loop()
        core = Echo(loop.time() + 3600)
        woken = asyncio.Event()

        def wake():
            driver.feed("deadline")
            woken.set()

        driver = Driver(core, lambda _: None, wake)
        driver.feed("begin")
        core.deadline = loop.time()
        driver.feed("sooner")
        await woken.wait()

    run(main())


def test_commands_behind_an_error_are_carried_out_all_the_same():
    async def main():
        done = []
        finished = asyncio.Event()

        def carry_out(command):
            if command == "fails":
                raise RuntimeError("a handler's bug")
            done.append(command)
            finished.set()

        driver = Driver(Echo(), carry_out, lambda: driver.feed(()))
        with pytest.raises(RuntimeError):
            driver.feed(("fails", "next"))
        await finished.wait()
        assert done == ["next"]

    run(main())


def test_nothing_after_stop():
    async def main():
        core = Echo(0.0)
        woken = []
        driver = Driver(core, lambda _: driver.stop(), lambda: woken.append(1))
        driver.feed(("stop", "never"))
        assert driver.feed("event") is False
        assert core.events == [("stop", "never")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert woken == []

    run(main())
