"""How the node of a host is started."""

from pathlib import Path

from brigade.lab.hosts import Place
from brigade.lab.scenario_spec import HostSpec


def node_arguments(host: HostSpec, place: Place, run_dir: Path, nodes_dir: Path) -> list[str | Path]:
    """Return the command line of the node of a host."""
    return [
        *("join", run_dir / "invite.txt", "--end-with-stdin"),
        *("--name", host.name, "--state", nodes_dir / host.name),
        *("--listen", place.listen, "--advertise", place.outer_host),
        *("--device", "cpu", "--threads", "1"),
        *("--timeline", nodes_dir / f"{host.name}.timeline"),
        *(("--memory", host.memory) if host.memory else ()),
    ]
