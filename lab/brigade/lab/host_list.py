"""The hosts of a scenario one by one: `count` of a kind become as many names, and no name is given twice."""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from brigade.lab.scenario_spec import COORDINATOR, MOST_HOSTS, HostSpec
from brigade.wire.errors import ConfigError


def each_host(specs: Sequence[HostSpec]) -> tuple[HostSpec, ...]:
    """Return the hosts without counts. Raises ConfigError for none, for too many, and for a name given twice."""
    wanted = sum(spec.count for spec in specs)
    if not 1 <= wanted <= MOST_HOSTS:
        raise ConfigError(f"host: expected 1 to {MOST_HOSTS} hosts, found {wanted}")
    hosts = tuple(_one_each(specs))
    sites = {host.site for host in hosts if host.site}
    for name, count in Counter([*(host.name for host in hosts), *sites, COORDINATOR]).items():
        if count > 1:
            raise ConfigError(f"host: {name!r} is the name of {count} hosts or sites")
    return hosts


def _one_each(specs: Sequence[HostSpec]) -> Iterator[HostSpec]:
    for spec in specs:
        if spec.count == 1:
            yield spec
        else:
            yield from (replace(spec, name=f"{spec.name}-{number + 1}", count=1) for number in range(spec.count))
