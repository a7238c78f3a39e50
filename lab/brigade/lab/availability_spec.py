"""Who is there when, as a kind of fleet in numbers; each number with where it comes from, or marked as assumed."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from brigade.lab.quantities import Seconds, Seed
from brigade.wire.run_spec import Fraction

LEAST_HOURS, MOST_HOURS = 0.01, 10_000.0  # a little more than a year
LEAST_COMPRESSION, MOST_COMPRESSION = 0.001, 1_000_000.0
Hour = Annotated[float, Meta(ge=0.0, lt=24.0)]
LogMean = Annotated[float, Meta(ge=-20.0, le=20.0)]  # of hours: from microseconds to what no trace lasts
LogSigma = Annotated[float, Meta(ge=0.0, le=10.0)]
Shape = Annotated[float, Meta(ge=0.05, le=100.0)]  # nearer to 0, hours are drawn that no float holds
Scale = Annotated[float, Meta(gt=0.0, le=MOST_HOURS)]


class Volunteers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines of volunteers, who use them themselves: each comes and goes on its own, many in the evening.

    That sessions of SETI@home hosts follow a few heavy-tailed families, Weibull among them, is what Javadi, Kondo,
    Vincent and Anderson found in 230,000 traces (IEEE TPDS 22(11), 2011, doi 10.1109/TPDS.2011.83, abstract). The four
    numbers are those that simulators of BOINC take from that work; they could not be checked against it: assumed.
    """

    session_shape: Shape = 0.393  # Weibull; below 1: who has stayed long stays longer. Assumed, see above
    session_scale_h: Scale = 2.964  # mean of a session: scale * gamma(1 + 1 / shape) = 10.3 h. Assumed, see above
    absence_log_mean: LogMean = -0.586  # lognormal, of hours: the median is exp(-0.586) = 0.56 h. Assumed, see above
    absence_log_sigma: LogSigma = 2.844  # Assumed, see above
    diurnal: Fraction = 0.5  # how much rarer a return is at the quietest hour than at the busiest. Assumed
    busiest_hour: Hour = 20.0  # Assumed


class Spot(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Preemptible virtual machines: a zone takes several at once, and gives others later.

    Counted in a published trace of the Bamboo project (NSDI 2023; github.com/uclasystem/bamboo, doc/data/aws-spot-
    instances-g4dn-xlarge-us-east-1d-2020-11-23-1730-to-2020-11-24-1530.csv), a zone under pressure: in the 5.62 h from
    the first instance to the last change 17 preemptions take 51 instances, 3.0 at a time, 36 % of those there on
    average. In the calm zone us-east-1e (p2.xlarge, the same folder) 3 of 10 instances went in 19 h, one at a time:
    `preemptions_per_h = 0.16`, `share = 0.1`.
    """

    zones: Annotated[int, Meta(ge=1, le=1000)] = 1  # machines are dealt to them in turn; one zone's do not touch others
    preemptions_per_h: Annotated[float, Meta(gt=0.0, le=3600.0)] = 3.0  # of each zone: 17 in 5.62 h
    share: Fraction = 0.36  # of the machines that are there, each drawn by itself
    replaced_log_mean: LogMean = -1.56  # lognormal, of hours: the median is 760 s, first lost first replaced
    replaced_log_sigma: LogSigma = 1.12  # of the same 47 waits


class TraceSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When hosts are there: a CSV file with the columns node, start_s, end_s, or periods drawn by a generator."""

    file: str = ""
    generator: Literal["", "volunteers", "spot"] = ""
    ends: Literal["kill", "leave"] = "kill"  # how a period ends
    hours: Annotated[float, Meta(ge=LEAST_HOURS, le=MOST_HOURS)] = 24.0  # of the fleet's own time that are drawn
    start_hour: Hour = 18.0  # of the day, when the experiment begins
    compress: Annotated[float, Meta(ge=LEAST_COMPRESSION, le=MOST_COMPRESSION)] = (
        1.0  # how many times faster than by the clock; 288: a day in five minutes
    )
    shortest_s: Seconds = 5.0  # in the experiment's time: shorter absences are passed over, shorter periods left out
    seed: Seed | None = None  # the scenario's when absent
    volunteers: Volunteers = Volunteers()
    spot: Spot = Spot()
