"""The loss curve as a picture and in the terminal."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Points = Sequence[tuple[int, float]]  # (steps done, loss)

PLOT_EXTRA = "install the plots with: pip install 'bucket-brigade[plot]'"


def optional(module: str) -> Any:
    """Import a module of the extra `plot`; None when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def draw_png(path: Path, train: Points, validation: Points, references: Mapping[str, float]) -> bool:
    """Write the curve as PNG; references are horizontal lines by name. False when matplotlib is missing."""
    if optional("matplotlib") is None:
        return False
    figure_module = importlib.import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*train, strict=True), color="tab:blue", linewidth=0.8, alpha=0.6, label="training")
    if validation:
        axes.plot(*zip(*validation, strict=True), color="tab:orange", marker="o", markersize=3, label="validation")
    for name, loss in references.items():
        axes.axhline(loss, color="gray", linestyle="--", linewidth=0.8)
        axes.annotate(f"{name} {loss:.2f}", xy=(1.0, loss), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.legend(loc="upper right")
    axes.grid(alpha=0.2)
    figure.savefig(path)
    return True


def draw_terminal(train: Points, validation: Points, *, columns: int, rows: int = 16) -> str | None:
    """Return the curve as text of `columns` x `rows` characters with ANSI colours. None when plotext is missing."""
    plotext = optional("plotext")
    if plotext is None:
        return None
    figure = plotext.figure
    figure.clear()
    figure.theme("simple")  # leaves the terminal's background as it is
    figure.plot_size(columns, rows)
    figure.draw(figure.signal(*zip(*train, strict=True)).lines().label("training"))
    if validation:
        figure.draw(figure.signal(*zip(*validation, strict=True), marker="o").label("validation"))
    figure.legend(active=False)
    figure.title("loss by step: the line is training, o is validation")
    return str(figure.build().string()).rstrip("\n")
