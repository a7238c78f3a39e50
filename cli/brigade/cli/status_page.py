"""The state of a run as a page in the terminal, from the JSON that its coordinator tells; 80 columns suffice."""

from collections.abc import Mapping
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from brigade.coordinator.wording import counted, show_duration
from brigade.wire.harmless import harmless

Status = Mapping[str, Any]
UNKNOWN = "-"


def show_status(status: Status, console: Console) -> None:
    """Print headline, stages, links and nodes."""

    def say(text: str, style: str = "") -> None:
        console.print(Text(harmless(text), style=style), soft_wrap=True)

    for line in headline(status):
        say(line)
    if status["limited_by"]:
        console.print(Text(harmless(f"limited by {status['limited_by']}")))
    if status["stages"]:
        say("")
        console.print(stage_table(status))
        if len(status["stages"]) > 1:
            say("")
            console.print(link_table(status))
        if status["plan_reason"]:
            say("")
            console.print(Text(harmless(f"plan: {status['plan_reason']}"), style="dim"))
    if status["nodes"]:
        say("")
        console.print(node_table(status))


def headline(status: Status) -> list[str]:
    """Return what a person wants to know first, a line each."""
    done = f"{status['step']} of {counted(status['max_steps'], 'step')} done"
    lines = [f"{status['run']}: {status['state']}, {done}"]
    if status["waiting_for"]:
        lines.append(f"waiting for {status['waiting_for']}")
    if status["reason"]:
        lines.append(f"reason: {status['reason']}")
    lines += [line for line in (_how_good(status), _how_fast(status)) if line]
    if status["model"]:
        lines.append(f"model: {status['model']}")
    return lines


def _how_good(status: Status) -> str:
    facts = []
    if status["loss"] is not None:
        facts.append(f"loss {status['loss']:.4f}")
    if status["validation_loss"] is not None:
        facts.append(f"validation loss {status['validation_loss']:.4f} after step {status['validation_step']}")
    if status["checkpoint_steps"] is not None:
        facts.append(f"checkpoint after step {status['checkpoint_steps']}")
    return ", ".join(facts)


def _how_fast(status: Status) -> str:
    facts = []
    if status["throughput"]:
        facts.append(f"{status['throughput']:,.0f} {status['unit']}/s")
    measured, predicted = status["usual_step_s"], status["predicted_step_s"]
    if measured is not None:
        expected = f" (predicted: {step_time(predicted)})" if predicted is not None else ""
        facts.append(f"a step takes {step_time(measured)}{expected}")
    elif predicted is not None:
        facts.append(f"a step is predicted to take {step_time(predicted)}")
    if status["time_left_s"] is not None:
        facts.append(f"{show_duration(status['time_left_s'])} left")
    return ", ".join(facts)


def plain_table(*columns: str, right: tuple[str, ...] = (), bounded: Mapping[str, int] | None = None) -> Table:
    """Return a table without a frame, a line a row; columns named in `right` are numbers.

    What does not fit is cut off: in `bounded` columns beyond so many characters, in others at the edge of the terminal.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        most = (bounded or {}).get(name)
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", max_width=most)
    return table


def stage_table(status: Status) -> Table:
    """Return a row a stage: who holds which blocks, its part of the compute, and how long it waits for others.

    What it waits after its last microbatch of a step, until all others have done theirs, is a part of its waiting.
    """
    right = ("stage", "compute", "waiting", "at step end")
    table = plain_table("stage", "node", "blocks", *right[1:], right=right, bounded={"node": 40})
    for row in status["stages"]:
        cells = (
            str(row["stage"]),
            row["node"],
            block_range(row["first_block"], row["end_block"] - 1),
            percent(row["compute_share"]),
            percent(row["wait_share"]),
            percent(row["gated_share"]),
        )
        table.add_row(*(Text(harmless(cell)) for cell in cells))
    return table


def link_table(status: Status) -> Table:
    """Return a row a direction: what is sent, how many times smaller than raw, how fast the link was, the codec."""
    bounded = {"link": 24}
    table = plain_table("link", "carries", "smaller", "link speed", "codec", right=("smaller",), bounded=bounded)
    stages = status["stages"]
    for index, row in enumerate(stages):
        for step, way, carries, link in (
            (1, "forward", "activations", "link"),
            (-1, "backward", "gradients", "back_link"),
        ):
            if not 0 <= index + step < len(stages):
                continue
            sent, raw = row[f"{way}_bytes"], row[f"{way}_raw_bytes"]
            cells = (
                f"{row['node']} -> {stages[index + step]['node']}",
                carries,
                f"{raw / sent:.1f}x" if sent else UNKNOWN,
                link_speed(row[f"{link}_bytes_per_s"], row[f"{link}_rtt_s"]),
                row[f"{way}_codec"],
            )
            table.add_row(*(Text(harmless(cell)) for cell in cells))
    return table


def node_table(status: Status) -> Table:
    """Return a row a node: its device, and what it does now; its id is in the JSON."""
    columns = ("node", "stage", "device", "heard", "doing")
    table = plain_table(*columns, right=("stage", "heard"), bounded={"node": 16, "device": 20})
    for row in status["nodes"]:
        stage = "spare" if row["stage"] is None else str(row["stage"])
        doing = "leaving" if row["leaving"] else brief(row["doing"]) or UNKNOWN
        cells = (row["node"], stage, row["device"], f"{row['heard_s_ago']:.1f} s ago", doing)
        table.add_row(*(Text(harmless(cell)) for cell in cells))
    return table


def brief(doing: str) -> str:
    """Return what a node does, without what every row has."""
    if " of microbatch " not in doing or not doing.startswith("waiting for the "):
        return doing.partition(" of step ")[0]
    what, _, behind = doing.removeprefix("waiting for the ").partition(" of step ")
    return f"waits for {what.replace(' of microbatch ', ' ')} {behind.partition(' ')[2]}".strip()


def block_range(first: int, last: int) -> str:
    """Return the numbers of consecutive blocks."""
    return str(first) if first == last else f"{first}-{last}"


def link_speed(bytes_per_s: float | None, rtt_s: float | None) -> str:
    """Return how fast a link was when it was measured."""
    facts = [f"{bytes_per_s / 1e6:,.0f} MB/s"] if bytes_per_s else []
    facts += [f"{rtt_s * 1e3:.1f} ms"] if rtt_s is not None else []
    return ", ".join(facts) or UNKNOWN


def step_time(seconds: float) -> str:
    """Return the time of a step: `85 ms`, `2.31 s`, or `1:02` from a minute on."""
    if seconds >= 60:
        return show_duration(seconds)
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def percent(share: float | None) -> str:
    """Return a share between 0 and 1 as a percentage."""
    return UNKNOWN if share is None else f"{share:.0%}"
