"""The network of a simulated line: one server for each direction of a hop and of a port, then the way.

A value passes its places at once (the narrowest decides), and each place serves one value at a time: it is exact in
what it can carry. On an uplink that carries both, gradients overtake activations, as fragments do between nodes.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping

from brigade.partition.line import Line, Server
from brigade.partition.simulation.agenda import Agenda
from brigade.partition.simulation.disturbances import QUIET, Calendar, Noise, WayNoise

Deliver = Callable[[int, int], None]  # (link, microbatch)


class Value:
    """An activation or a gradient that shares an uplink."""

    __slots__ = ("index", "left_s", "line_end", "link", "ready", "way_s")

    def __init__(self, link: int, index: int, left_s: float, way_s: float) -> None:
        self.link = link
        self.index = index
        self.left_s = left_s  # on the uplink
        self.way_s = way_s
        self.line_end: float | None = None  # when the hop's own line is through with it; None: not begun
        self.ready = 0.0  # when the receiver's downlink is through with it


class Network:
    """Carries values over links: link 2k takes activations from stage k to k+1, link 2k+1 gradients back."""

    def __init__(
        self,
        agenda: Agenda,
        line: Line,
        deliver: Deliver,
        calendars: Mapping[Server, Calendar],
        noise: Noise = QUIET,
        seed: int = 0,
    ) -> None:
        self._agenda = agenda
        self._deliver = deliver
        self.servers: list[Server] = []
        self._numbers: dict[Server, int] = {}
        links = 2 * len(line.hops)
        # by link: the number of the hop's own line, or of the trunk that several hops share
        self._own = [
            self._number(line.hop_line(hop, gradients=back)) for hop in range(len(line.hops)) for back in (False, True)
        ]
        self._line_s = [time for hop in line.hops for time in (hop.activation_s, hop.gradient_s)]
        self._way_s = [way for hop in line.hops for way in (hop.one_way_s, hop.round_trip_s - hop.one_way_s)]
        self._up_s, self._down_s = [0.0] * links, [0.0] * links
        self._up, self._down = [-1] * links, [-1] * links
        self._use_ports(line)
        count = len(self.servers)
        users = Counter([*self._up, *self._down])
        self._shared_down = [down >= 0 and users[down] > 1 for down in self._down]
        kinds = [{link % 2 for link in range(links) if self._up[link] == server} for server in range(count)]
        self._uplinks = {
            server: _Uplink()
            for server in range(count)
            if self.servers[server].kind == "uplink" and kinds[server] == {0, 1}
        }
        self._free = [0.0] * count
        self._busy = [0.0] * count
        self._calendars = [calendars.get(server) for server in self.servers]
        self._last = [0.0] * links  # when the last value of a link came out of it
        self._noise = None if noise in _SILENT else [WayNoise(noise, (seed, 1, link)) for link in range(links)]

    def _number(self, server: Server) -> int:
        if server not in self._numbers:
            self._numbers[server] = len(self.servers)
            self.servers.append(server)
        return self._numbers[server]

    def _use_ports(self, line: Line) -> None:
        for hop in range(len(line.hops)):
            near, far = line.port(hop), line.port(hop + 1)
            ways = (
                (2 * hop, hop, near.activation_out_s, hop + 1, far.activation_in_s),
                (2 * hop + 1, hop + 1, far.gradient_out_s, hop, near.gradient_in_s),
            )
            for link, sender, out_s, receiver, in_s in ways:
                self._up_s[link], self._down_s[link] = out_s, in_s
                if out_s > 0:
                    pipe = line.port(sender).half_duplex
                    self._up[link] = self._number(Server("pipe" if pipe else "uplink", line.host(sender)))
                if in_s > 0:
                    pipe = line.port(receiver).half_duplex
                    self._down[link] = self._number(Server("pipe" if pipe else "downlink", line.host(receiver)))

    def busy(self) -> dict[Server, float]:
        """Return for how many seconds each server has carried something."""
        return {server: busy for server, busy in zip(self.servers, self._busy, strict=True) if busy > 0}

    def send(self, link: int, index: int) -> None:
        """Send the value of a microbatch over a link, now."""
        now = self._agenda.now
        factor, longer_s = self._noise[link].draw() if self._noise else (1.0, 0.0)
        way_s = self._way_s[link] + longer_s
        up = self._up[link]
        if up in self._uplinks:
            self._enqueue(up, Value(link, index, self._up_s[link] * factor, way_s))
            return
        first = last = now
        if up >= 0:
            first, last = self._book(up, now, self._up_s[link] * factor)
        line_s, own = self._line_s[link] * factor, self._own[link]
        if line_s or self._calendars[own]:
            first, end = self._book(own, first, line_s)
            last = max(last, end)
        last = self._last[link] = max(last + way_s, self._last[link])
        if self._down[link] < 0:
            self._agenda.at(last, self._deliver, link, index)
        elif self._shared_down[link]:
            self._agenda.at(first + way_s, self._first_bit, link, (index, last))
        else:
            _, end = self._book(self._down[link], first + way_s, self._down_s[link])
            self._agenda.at(max(last, end), self._deliver, link, index)

    def _first_bit(self, link: int, value: tuple[int, float]) -> None:
        """Let the downlink that several links share take what comes first, first."""
        index, last = value
        _, end = self._book(self._down[link], self._agenda.now, self._down_s[link])
        self._agenda.at(max(last, end), self._deliver, link, index)

    def _book(self, server: int, earliest: float, seconds: float) -> tuple[float, float]:
        """Occupy a server for so many seconds as soon as it is free; return start and end."""
        start = max(earliest, self._free[server])
        calendar = self._calendars[server]
        end = start + seconds if calendar is None else calendar.finish(start, seconds)
        self._free[server] = end
        self._busy[server] += seconds
        return start, end

    # --- uplinks on which gradients overtake activations ------------------------------------------------------------

    def _enqueue(self, server: int, value: Value) -> None:
        uplink = self._uplinks[server]
        self._busy[server] += value.left_s
        current = uplink.current
        if current is None:
            self._begin(server, uplink, value)
        elif value.link % 2 and not current.link % 2:
            current.left_s -= self._work_s(server, uplink.began)
            uplink.activations.appendleft(current)
            self._begin(server, uplink, value)
        else:
            (uplink.gradients if value.link % 2 else uplink.activations).append(value)

    def _work_s(self, server: int, since: float) -> float:
        calendar, now = self._calendars[server], self._agenda.now
        return now - since if calendar is None else calendar.work_between(since, now)

    def _begin(self, server: int, uplink: "_Uplink", value: Value) -> None:
        now = self._agenda.now
        calendar = self._calendars[server]
        uplink.current = value
        uplink.began = now
        uplink.ends = now + value.left_s if calendar is None else calendar.finish(now, value.left_s)
        self._agenda.at(uplink.ends, self._uplink_done, server, value)
        if value.line_end is not None:
            return
        link = value.link
        own = self._own[link]
        first = value.line_end = now
        if self._line_s[link] or self._calendars[own]:
            first, value.line_end = self._book(own, now, self._line_s[link])
        if self._shared_down[link]:
            self._agenda.at(first + value.way_s, self._first_bit_of, value)
        elif self._down[link] >= 0:
            _, value.ready = self._book(self._down[link], first + value.way_s, self._down_s[link])

    def _first_bit_of(self, value: Value, _: None) -> None:
        value.ready = self._book(self._down[value.link], self._agenda.now, self._down_s[value.link])[1]

    def _uplink_done(self, server: int, value: Value) -> None:
        now = self._agenda.now
        uplink = self._uplinks[server]
        if uplink.current is not value or uplink.ends != now:
            return  # it was overtaken since
        assert value.line_end is not None
        link = value.link
        last = self._last[link] = max(max(now, value.line_end) + value.way_s, self._last[link])
        if self._down[link] < 0:
            self._agenda.at(last, self._deliver, link, value.index)
        else:
            self._agenda.at(last, self._last_bit, value)
        uplink.current = None
        if uplink.gradients:
            self._begin(server, uplink, uplink.gradients.popleft())
        elif uplink.activations:
            self._begin(server, uplink, uplink.activations.popleft())

    def _last_bit(self, value: Value, _: None) -> None:
        if value.ready <= self._agenda.now:
            self._deliver(value.link, value.index)
        else:
            self._agenda.at(value.ready, self._deliver, value.link, value.index)


class _Uplink:
    __slots__ = ("activations", "began", "current", "ends", "gradients")

    def __init__(self) -> None:
        self.current: Value | None = None
        self.began = 0.0
        self.ends = math.inf
        self.gradients: deque[Value] = deque()
        self.activations: deque[Value] = deque()


_SILENT = (QUIET,)
