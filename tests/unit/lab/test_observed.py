"""When an experiment has to end: the limit counts from when training begins, and getting there has one of its own."""

from brigade.lab.observed import Observed
from brigade.lab.scenario_spec import HostSpec, ScenarioSpec

SPEC = ScenarioSpec(name="toy", host=(HostSpec(name="ada"),), limit_s=60.0, start_limit_s=200.0)


def test_training_must_begin_within_a_limit_of_its_own() -> None:
    observed = Observed(0, started_at=1000.0)
    assert observed.end_by(SPEC) == (1200.0, "training has not begun within 200 s")


def test_the_limit_counts_from_when_training_first_began() -> None:
    observed = Observed(0, started_at=1000.0, began_at=1150.0)
    assert observed.end_by(SPEC) == (1210.0, "the limit of 60 s is reached")
