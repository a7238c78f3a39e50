"""What a prediction knows besides blocks and links, each against the step it makes by hand."""

import math

import pytest
from tests.unit.partition.planning_cases import even_fleet

from brigade.partition.fixed_order import Split
from brigade.partition.line import Access, Server
from brigade.partition.prediction import Handling, Surroundings, Trunk, lay_line, lay_round, predict_step_s
from brigade.wire.plan import TiedParameter

K = 4  # microbatches
IN_ORDER = Split((0, 1), (0, 1, 2), 0.0, 0.0, 0.0)


def two_nodes(**changes):
    """Two blocks of 1 s and 2 s on two nodes; 100 bytes between them at 10 bytes a second, a second of round trip."""
    settings = {
        "output_bytes": [100, 0],
        "bytes_per_s": {(0, 1): 10.0, (1, 0): 10.0},
        "rtt_s": {(0, 1): 1.0, (1, 0): 1.0},
    }
    return even_fleet(2, 2, **(settings | changes)).measurements()


def test_an_access_is_inferred_from_the_best_link() -> None:
    fleet = even_fleet(3, 3, output_bytes=[100, 100, 0], bytes_per_s={(0, 1): 10.0, (0, 2): 40.0, (2, 1): 20.0})
    line = lay_line(fleet.measurements(), Split((0, 1, 2), (0, 1, 2, 3), 0.0, 0.0, 0.0), Surroundings())
    assert line.hops[0].activation_s == pytest.approx(100 / 10)
    assert line.ports[0].activation_out_s == pytest.approx(100 / 40)
    assert line.ports[1].activation_in_s == pytest.approx(100 / 20)


def test_what_a_node_sends_shares_its_uplink() -> None:
    fleet = even_fleet(3, 3, output_bytes=[100, 100, 0])
    around = Surroundings(accesses={"id1": Access(up_bytes_per_s=5.0, down_bytes_per_s=math.inf)})
    line = lay_line(fleet.measurements(), Split((0, 1, 2), (0, 1, 2, 3), 0.0, 0.0, 0.0), around)
    assert line.loads()[Server("uplink", 1)] == pytest.approx(2 * 100 / 5)


def test_messages_are_larger_than_their_values() -> None:
    line = lay_line(two_nodes(), IN_ORDER, Surroundings(message_bytes=20))
    assert (line.hops[0].activation_s, line.hops[0].gradient_s) == (pytest.approx(12), pytest.approx(12))
    assert line.ports[0].activation_out_s == pytest.approx(12)


def test_the_narrowest_trunk_carries_all_that_pass_it() -> None:
    trunks = (
        Trunk(50.0, frozenset({("id0", "id1"), ("id1", "id0")})),
        Trunk(40.0, frozenset({("id0", "id1")})),
    )
    line = lay_line(two_nodes(), IN_ORDER, Surroundings(trunks=trunks))
    assert line.trunks == ((1, 0),)
    assert line.hop_line(0, gradients=False) == Server("trunk", 1)


def test_the_round_through_the_coordinator_lasts_as_long_as_its_farthest_node() -> None:
    measured = two_nodes()
    plain = predict_step_s(measured, IN_ORDER)
    ways = {"id0": 0.5, "id1": 2.0}
    # the last stage is through long before the first, whose report is what the decision waits for
    assert predict_step_s(measured, IN_ORDER, Surroundings(coordinator_way_s=ways)) == pytest.approx(plain + 2 * 0.5)
    late = Surroundings(coordinator_way_s={"id0": 0.0, "id1": 100.0})
    assert predict_step_s(measured, IN_ORDER, late) > plain + 50


def test_handling_costs_what_it_says() -> None:
    measured = two_nodes()
    plain = predict_step_s(measured, IN_ORDER)
    round_s = predict_step_s(measured, IN_ORDER, Surroundings(handling=Handling(round_s=0.3, optimizer_s=0.2)))
    assert round_s == pytest.approx(plain + 0.5)
    line = lay_line(
        measured,
        IN_ORDER,
        Surroundings(
            handling=Handling(
                encode_s=0.1, encode_s_per_byte=0.01, decode_s=0.2, decode_s_per_byte=0.02, message_s=0.3, turn_s=0.4
            )
        ),
    )
    assert (line.stages[0].forward_s, line.stages[0].backward_s) == (pytest.approx(1.4), pytest.approx(2.4))
    assert (line.stages[1].encode_s, line.stages[1].decode_s) == (pytest.approx(1.1), pytest.approx(2.2))
    assert line.hops[0].one_way_s == pytest.approx(0.5 + 0.3)


def test_what_nodes_say_of_their_codec_counts_by_size() -> None:
    fleet = even_fleet(2, 3, output_bytes=[50, 100, 0])
    measured = fleet.measurements()
    measured.codec_s = [(0.8, 0.4), (0.2, 0.1)]
    split = Split((0, 1), (0, 1, 3), 0.0, 0.0, 0.0)
    line = lay_line(measured, split, Surroundings(handling=Handling(encode_s=0.01)))
    assert (line.stages[0].encode_s, line.stages[0].decode_s) == (pytest.approx(0.41), pytest.approx(0.2))
    assert line.stages[1].encode_s == pytest.approx(0.11)


def test_tied_parameters_travel_between_their_stages() -> None:
    tied = (TiedParameter(owner="0.weight", followers=("1.weight",)),)
    measured = two_nodes(tied=tied, persistent_bytes=[50, 50])
    (tie,) = lay_round(measured, IN_ORDER, Surroundings(message_bytes=20)).ties
    assert (tie.owner, tie.follower) == (0, 1)
    assert tie.gradient_s == tie.weight_s == pytest.approx(0.5 + 70 / 10)
    assert lay_round(measured, Split((0,), (0, 2), 0.0, 0.0, 0.0), Surroundings()).ties == ()
    # short ones hide behind the values that travel anyway
    measured, untied = (two_nodes(tied=each, persistent_bytes=[500, 500]) for each in (tied, ()))
    assert predict_step_s(measured, IN_ORDER) > predict_step_s(untied, IN_ORDER)
