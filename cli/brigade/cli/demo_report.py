"""What came out of a demo: the facts as one value, as JSON, and as a page in the terminal."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from brigade.cli.curve import PLOT_EXTRA, Points, draw_terminal
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import StagePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """What one directed link carried for each target token: encoded, and what raw fp32 would have taken."""

    source: str
    target: str
    carries: str  # activations, gradients
    codec: str
    bytes_per_token: float
    raw_bytes_per_token: float

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than raw fp32."""
        return self.raw_bytes_per_token / self.bytes_per_token if self.bytes_per_token else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """Everything that a demo shows at its end. Losses are in nats per token."""

    run_dir: str
    steps: int
    parameters: int
    tokens: int
    training_s: float
    stages: Sequence[str]
    train_loss: Points
    evaluations: Points
    validation_loss: float  # of the exported model in a plain torch program, over every held-out token
    unigram_loss: float
    bigram_loss: float
    links: Sequence[LinkTraffic]
    sample: str
    model: str
    next_command: str
    curve: str | None

    def to_json(self) -> str:
        """Return the facts as JSON, links with their ratios."""
        facts = asdict(self)
        facts["links"] = [asdict(link) | {"ratio": link.ratio} for link in self.links]
        return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"


def link_traffic(stages: Sequence[StagePlan], statistics: Sequence[StageStatistics]) -> list[LinkTraffic]:
    """Return the traffic of every link of a pipeline, from each stage's totals."""
    links = []
    for index, (stage, totals) in enumerate(zip(stages, statistics, strict=True)):
        name, tokens = stage.contact.name, max(totals.tokens, 1)
        sides = (
            (index + 1, "activations", stage.forward_codec, totals.forward_bytes, totals.forward_raw_bytes),
            (index - 1, "gradients", stage.backward_codec, totals.backward_bytes, totals.backward_raw_bytes),
        )
        for other, carries, codec, encoded, raw in sides:
            if 0 <= other < len(stages):
                links.append(
                    LinkTraffic(
                        source=name,
                        target=stages[other].contact.name,
                        carries=carries,
                        codec=codec,
                        bytes_per_token=encoded / tokens,
                        raw_bytes_per_token=raw / tokens,
                    )
                )
    return links


def show(report: DemoReport, console: Console) -> None:
    """Print the page."""

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)  # Text: brackets are no markup, paths stay whole

    columns = max(40, min(console.width, 100))
    drawn = draw_terminal(report.train_loss, report.evaluations, columns=columns)
    say("")
    console.print(Text.from_ansi(drawn) if drawn else Text(f"To see the loss curve here, {PLOT_EXTRA}"))
    say("")
    console.print(loss_table(report))
    say("")
    console.print(link_table(report.links))
    say("")
    say("The model writes, at temperature 0.8:", "bold")
    say("\n".join(f"  {line}" for line in report.sample.splitlines()), "italic")
    say("")
    rate = report.tokens / report.training_s if report.training_s else 0.0
    say(
        f"{report.steps} steps, {report.tokens:,} tokens, {report.parameters:,} parameters "
        f"over {len(report.stages)} nodes in {report.training_s:.0f} s ({rate:,.0f} tokens/s)."
    )
    say(f"  model  {report.model}")
    say(f"  curve  {report.curve or PLOT_EXTRA}")
    say(f"  run    {report.run_dir}")
    say("")
    say("Next, with nodes of your own, in separate terminals or on separate machines:")
    say(f"  {report.next_command}", "bold")


def loss_table(report: DemoReport) -> Table:
    """Return the model's validation loss beside those of counting models."""
    table = Table(title="Validation loss, nats per byte", title_justify="left", title_style="bold", box=None)
    for name, justify in (("model", "left"), ("loss", "right"), ("bits per byte", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    rows = (
        ("unigram: how often each byte comes", report.unigram_loss, "dim"),
        ("bigram: how often each byte follows another", report.bigram_loss, "dim"),
        (f"trained: {report.steps} steps over {len(report.stages)} nodes", report.validation_loss, "bold"),
    )
    for name, loss, style in rows:
        table.add_row(name, f"{loss:.3f}", f"{loss / math.log(2):.3f}", style=style)
    return table


def link_table(links: Sequence[LinkTraffic]) -> Table:
    """Return what each link carried."""
    table = Table(title="What the links carried, bytes per token", title_justify="left", title_style="bold", box=None)
    for name in ("link", "carries", "codec"):
        table.add_column(name)
    for name in ("sent", "raw fp32", "ratio"):
        table.add_column(name, justify="right")
    for link in links:
        sizes = (f"{link.bytes_per_token:.0f}", f"{link.raw_bytes_per_token:.0f}", f"{link.ratio:.1f}x")
        table.add_row(f"{link.source} -> {link.target}", link.carries, link.codec, *sizes)
    return table


def write_json(report: DemoReport, path: Path) -> None:
    """Write the facts to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.to_json(), encoding="utf-8")
