"""`brigade crowd`: what a crowd of simulated nodes costs the coordinator, on one processor core."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brigade.cli.choices import finite

if TYPE_CHECKING:
    from rich.console import Console

    from brigade.lab.crowd import CrowdResult

Nodes = Annotated[int, typer.Option("--nodes", metavar="N", min=2, max=100_000, help="Nodes that are there at once.")]
Blocks = Annotated[int, typer.Option("--blocks", metavar="N", min=2, max=256, help="Blocks of the model.")]
Seconds = Annotated[
    float,
    typer.Option("--seconds", metavar="S", min=1.0, max=100_000, callback=finite, help="Virtual seconds to simulate."),
]
Compress = Annotated[
    float,
    typer.Option(
        "--compress",
        metavar="X",
        min=1.0,
        max=10_000,
        callback=finite,
        help="How many times faster nodes come and go than volunteers.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=10**15, help="Draw another crowd.")]
ResultFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result to a file.")]


def crowd(
    nodes: Nodes = 5000,
    blocks: Blocks = 64,
    seconds: Seconds = 260.0,
    compress: Compress = 20.0,
    seed: Seed = 0,
    result_file: ResultFile = None,
) -> None:
    """Measure what thousands of nodes cost the coordinator.

    Simulated nodes come, report and go in virtual time. The coordinator's core and its planner are the real ones.
    Takes about a minute.

    Example: brigade crowd --nodes 1000 --json crowd.json
    """
    import msgspec

    from brigade.cli.output_file import require_writable, write_output
    from brigade.cli.screen import open_console
    from brigade.lab.crowd import run_crowd
    from brigade.lab.crowd_spec import CrowdSpec

    require_writable(result_file, "--json")
    result = run_crowd(CrowdSpec(nodes=nodes, blocks=blocks, seconds=seconds, compress=compress, seed=seed))
    if result_file is not None:
        write_output(result_file, msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    show(result, open_console())


def show(result: "CrowdResult", console: "Console") -> None:
    """Print what came out."""
    from rich.table import Table

    facts = Table(box=None, show_header=False)
    facts.add_column(style="dim")
    facts.add_column()
    lives = "once" if result.lives == 1 else f"{result.lives} times"
    facts.add_row(
        "crowd",
        f"{result.nodes:,} nodes at once, {result.nodes_seen:,} in all, {result.virtual_seconds:,.0f} virtual seconds; "
        f"the coordinator started {lives}, {result.steps:,} steps",
    )
    facts.add_row(
        "events", f"{result.events:,} in {result.core_seconds:.2f} s: {result.events_per_s:,.0f} a second on one core"
    )
    facts.add_row(
        "longest", f"{result.longest_ms:.1f} ms, garbage collection apart ({result.collection_longest_ms:.1f} ms)"
    )
    facts.add_row(
        "plans", f"{result.plans}, at most {result.plan_longest_s:.2f} s; the last one has {result.plan_stages} stages"
    )
    facts.add_row("memory", f"{result.bytes_per_node:,.0f} bytes a node")
    console.print(facts)
    table = Table(title="Microseconds by event", title_justify="left", title_style="bold", box=None)
    table.add_column("event")
    for name in ("count", "mean", "half below", "99 % below", "longest"):
        table.add_column(name, justify="right")
    for decision in result.decisions:
        micros = (decision.mean_us, decision.p50_us, decision.p99_us, decision.longest_us)
        table.add_row(decision.kind, f"{decision.count:,}", *(f"{value:,.1f}" for value in micros))
    console.print(table)
