"""The directory of an experiment that has ended: reads its result and timelines, writes its trace and its page."""

from importlib.util import find_spec
from pathlib import Path

from brigade.lab.perfetto import chrome_trace
from brigade.lab.report.reported import Reported
from brigade.lab.result import parse_result
from brigade.lab.runner import NODES_DIR
from brigade.node.timeline import StageLife
from brigade.node.timeline_file import read_timeline
from brigade.wire.errors import BrigadeError, ConfigError

RESULT_NAME = "result.json"
TRACE_NAME = "trace.json"
TIMELINE_SUFFIX = ".timeline"
REPORT_EXTRA = "a report needs plotly; install it with: pip install 'bucket-brigade[report]'"


def read_experiment(path: Path) -> Reported:
    """Return the experiment of a directory or of a result file, with the timelines beside it, if there are any.

    Raises ConfigError for what is no result of this version.
    """
    file = path / RESULT_NAME if path.is_dir() else path
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"there is no result {file}") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    result = parse_result(data, str(file))
    lives = tuple(read_timelines(file.parent))
    title = f"{result.scenario}, predicted" if result.predicted else result.scenario
    return Reported(title=title, result=result, lives=lives, place=str(file.parent))


def read_timelines(directory: Path) -> list[StageLife]:
    """Return what the nodes of an experiment noted, as far as it is there; ConfigError when it cannot be read."""
    try:
        timelines = sorted((directory / NODES_DIR).glob(f"*{TIMELINE_SUFFIX}"))
        return [life for timeline in timelines for life in read_timeline(timeline)]
    except OSError as error:
        raise ConfigError(f"a timeline cannot be read: {error}") from error


def write_trace(experiment: Reported) -> Path:
    """Write the trace of an experiment into its directory and return its path."""
    path = Path(experiment.place) / TRACE_NAME
    path.write_bytes(chrome_trace(experiment.lives))
    return path


def require_plots() -> None:
    """Raise ConfigError, which says what to install, when a report cannot be drawn here."""
    if find_spec("plotly") is None:
        raise ConfigError(REPORT_EXTRA)


def write_report(experiments: list[Reported], path: Path) -> None:
    """Write the page of one experiment or of several. Raises ConfigError without plotly, BrigadeError without room."""
    require_plots()
    from brigade.lab.report.page import report_page  # noqa: PLC0415 - plotly is optional, and takes a moment

    page = report_page(experiments)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BrigadeError(f"the report {path} cannot be written: {error.strerror}") from error
