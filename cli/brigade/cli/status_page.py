"""The state of a run as a page in the terminal, from the JSON that its coordinator tells."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from brigade.wire.harmless import harmless

Status = Mapping[str, Any]
UNKNOWN = "-"


def show_status(status: Status, console: Console) -> None:
    """Print headline, stages and nodes."""

    def say(text: str, style: str = "") -> None:
        console.print(Text(harmless(text), style=style), soft_wrap=True)

    for line in headline(status):
        say(line)
    if status["stages"]:
        say("")
        console.print(stage_table(status))
        if status["plan_reason"]:
            say(f"plan: {status['plan_reason']}", "dim")
    if status["nodes"]:
        say("")
        console.print(node_table(status))


def headline(status: Status) -> list[str]:
    """Return what a person wants to know first, a line each."""
    state = f"{status['run']}: {status['state']}, {status['step']} of {status['max_steps']} steps done"
    if status["waiting_for"]:
        state += f", waiting for {status['waiting_for']}"
    lines = [state]
    if status["reason"]:
        lines.append(f"reason: {status['reason']}")
    facts = []
    if status["loss"] is not None:
        facts.append(f"loss {status['loss']:.4f}")
    if status["validation_loss"] is not None:
        facts.append(f"validation loss {status['validation_loss']:.4f} after step {status['validation_step']}")
    if status["tokens_per_s"]:
        facts.append(f"{status['tokens_per_s']:,.0f} tokens/s")
    if status["time_left_s"] is not None:
        facts.append(f"{timedelta(seconds=round(status['time_left_s']))} left")
    if status["checkpoint_steps"] is not None:
        facts.append(f"checkpoint after step {status['checkpoint_steps']}")
    if facts:
        lines.append(", ".join(facts))
    if status["model"]:
        lines.append(f"model: {status['model']}")
    return lines


def plain_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table without a frame; columns named in `right` are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    return table


def stage_table(status: Status) -> Table:
    """Return a row a stage: who holds which blocks, and how its compute and its links do."""
    right = ("stage", "share", "sent", "wait")
    table = plain_table("stage", "node", "blocks", "share", "link", "codec", "sent", "wait", right=right)
    for row in status["stages"]:
        raw = row["forward_raw_bytes"] + row["backward_raw_bytes"]
        sent = row["forward_bytes"] + row["backward_bytes"]
        cells = (
            str(row["stage"]),
            row["node"],
            block_range(row["first_block"], row["end_block"] - 1),
            percent(row["compute_share"]),
            link_text(row),
            codec_text(row, last=row is status["stages"][-1]),
            f"{raw / sent:.1f}x less" if sent else UNKNOWN,
            percent(row["wait_share"]),
        )
        table.add_row(*(Text(harmless(cell)) for cell in cells))
    return table


def node_table(status: Status) -> Table:
    """Return a row a node: its device, and what it does now."""
    table = plain_table("node", "id", "stage", "device", "heard", "doing", right=("stage", "heard"))
    for row in status["nodes"]:
        stage = "spare" if row["stage"] is None else str(row["stage"])
        doing = "leaving" if row["leaving"] else row["doing"] or UNKNOWN
        cells = (row["node"], row["node_id"], stage, row["device"], f"{row['heard_s_ago']:.1f} s ago", doing)
        table.add_row(*(Text(harmless(cell)) for cell in cells))
    return table


def block_range(first: int, last: int) -> str:
    """Return the numbers of consecutive blocks."""
    return str(first) if first == last else f"{first}-{last}"


def link_text(row: Status) -> str:
    """Return where the stage's activations go, and how fast the link was when it was measured."""
    if not row["link_to"]:
        return UNKNOWN
    text = f"-> {row['link_to']}"
    if row["link_bytes_per_s"]:
        text += f", {row['link_bytes_per_s'] / 1e6:,.0f} MB/s"
    if row["link_rtt_s"] is not None:
        text += f", {row['link_rtt_s'] * 1e3:.1f} ms"
    return text


def codec_text(row: Status, *, last: bool) -> str:
    """Return what the stage's links use: for activations to the next stage, for gradients to the one before."""
    ways = [row["forward_codec"]] * (not last) + [row["backward_codec"]] * (row["stage"] > 0)
    return " / ".join(dict.fromkeys(ways)) or UNKNOWN


def percent(share: float | None) -> str:
    """Return a share between 0 and 1 as a percentage."""
    return UNKNOWN if share is None else f"{share:.0%}"
