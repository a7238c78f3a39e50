"""The trace: slices of one row never overlap, arrows lead from what was sent to where it arrived, times are right."""

import json
from collections import defaultdict
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.lab.made_up import BEGAN_AT_S, FORWARD_S, WAY_S, made_up_lives

from brigade.lab import perfetto
from brigade.lab.perfetto import chrome_trace
from brigade.node.timeline import Action, StageBegan, StageLife


def events_of(lives):
    trace = json.loads(chrome_trace(lives))
    assert trace["displayTimeUnit"] == "ms"
    return trace["traceEvents"]


def one_life(actions, stage=0, stages=2, node="ada"):
    began = StageBegan(run_id="r", generation=3, stage=stage, node=node, stages=stages, at_s=0.0)
    return StageLife(began, actions)


def test_every_action_is_a_slice_with_its_times_in_microseconds():
    lives = made_up_lives(nodes=3, steps=2, microbatches=2)
    events = events_of(lives)
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == sum(len(life.actions) for life in lives)
    first = next(e for e in slices if e["name"] == "forward 1" and e["args"]["stage"] == 1 and e["args"]["step"] == 1)
    assert first["ts"] == round(1e6 * (2 * FORWARD_S + WAY_S))
    assert first["dur"] == 1e6 * FORWARD_S
    assert first["args"] == {"step": 1, "plan": 0, "stage": 1, "microbatch": 1}


def test_a_node_is_a_process_and_a_lane_a_thread():
    events = events_of(made_up_lives(nodes=2))
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(processes.values()) == ["node-0", "node-1"]
    threads = {(processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert {("node-0", "compute"), ("node-0", "codec"), ("node-0", "link"), ("node-0", "run")} <= threads


def test_an_arrow_leads_from_each_message_to_its_arrival():
    nodes, steps, microbatches = 3, 2, 4
    events = events_of(made_up_lives(nodes=nodes, steps=steps, microbatches=microbatches))
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == 2 * (nodes - 1) * steps * microbatches
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert abs(end["pid"] - start["pid"]) == 1
        assert end["ts"] - start["ts"] == round(1e6 * WAY_S)
        for edge in (start, end):  # each holds on to a slice
            assert any(
                e["ph"] == "X" and (e["pid"], e["tid"]) == (edge["pid"], edge["tid"])
                and e["ts"] <= edge["ts"] < e["ts"] + e["dur"]
                for e in events
            )  # fmt: skip


def test_what_never_arrived_has_no_arrow():
    lives = [one_life([Action("sent_activation", 0, 0, 1.0, 1.5, other=1)])]
    assert not [e for e in events_of(lives) if e["ph"] in "sf"]


@given(
    st.lists(
        st.tuples(
            st.floats(0, 10), st.floats(0, 3), st.sampled_from(["encode_activation", "forward", "sent_gradient"])
        ),
        max_size=30,
    )
)
@settings(max_examples=50)
def test_slices_of_one_row_never_overlap(spans):
    actions = [Action(kind, 0, i, begin, begin + length) for i, (begin, length, kind) in enumerate(spans)]
    rows = defaultdict(list)
    for event in events_of([one_life(actions)]):
        if event["ph"] == "X":
            rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, rows.values())) == len(actions)
    for row in rows.values():
        row.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(row))


def test_of_a_long_run_the_end_is_kept(monkeypatch):
    monkeypatch.setattr(perfetto, "MOST_ACTIONS", 5)
    actions = [Action("forward", 0, i, BEGAN_AT_S + i, BEGAN_AT_S + i + 1) for i in range(20)]
    slices = [e for e in events_of([one_life(actions)]) if e["ph"] == "X"]
    assert [e["args"]["microbatch"] for e in slices] == [15, 16, 17, 18, 19]
    assert slices[0]["ts"] == 0


def test_without_timelines_the_trace_is_empty():
    assert events_of([]) == []
