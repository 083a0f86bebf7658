"""Steps and what came of them. A step that did not run, or ran without the GPU that it is about, is "not proved"."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from workbench.clock import monotonic_ns

Status = Literal["proved", "failed", "not proved"]


class NotProved(Exception):
    """Why a step could not show what it is about: something is missing here. Figures may go with it."""

    def __init__(self, reason: str, **figures: Any) -> None:
        super().__init__(reason)
        self.figures = figures


class Failed(Exception):
    """What a step is about is not so."""

    def __init__(self, reason: str, **figures: Any) -> None:
        super().__init__(reason)
        self.figures = figures


@dataclass
class Place:
    """Where the steps run: a scratch folder, the weights, whether there is a GPU, whether this is the archive."""

    scratch: Path
    weights: Path
    gpu: bool
    quick: bool
    archived: bool = False
    shared: dict[str, Any] = field(default_factory=dict)
    closing: list[Callable[[], None]] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The kind of the instances that are checked."""
        return "KIND_GPU" if self.gpu else "KIND_CPU"

    def close(self) -> None:
        """Stops what steps left running for those after them."""
        while self.closing:
            self.closing.pop()()


@dataclass(frozen=True)
class Step:
    """``claims`` is what it proves; ``run`` gives figures, or raises.

    ``without_gpu`` says what becomes of it where there is none: it is not run, it is rehearsed on the CPU (and not
    proved), or it is about something else and proved all the same.
    """

    name: str
    part: Literal["a", "b"]
    claims: str
    run: Callable[[Place], dict[str, Any]]
    limit_s: float = 90.0
    without_gpu: Literal["not run", "rehearsed", "the same"] = "not run"


@dataclass(frozen=True)
class Outcome:
    """A step, its status, the reason where it is not "proved", what was seen, how long it took."""

    name: str
    part: str
    claims: str
    status: Status
    reason: str
    figures: dict[str, Any]
    seconds: float

    @property
    def hung(self) -> bool:
        """Whether it is running still."""
        return self.reason.startswith("no end within")


def run_all(steps: Iterable[Step], place: Place, limit_s: float, tell: Callable[[str], None]) -> Iterator[Outcome]:
    """Runs the steps in order; those for which no time is left, and all behind one that hangs, are not proved."""
    began, hung = monotonic_ns(), ""
    for step in steps:
        left_s = limit_s - (monotonic_ns() - began) / 1e9
        if hung:
            yield _outcome(step, "not proved", f"not run: '{hung}' hangs", {}, 0)
            continue
        if left_s < 5:
            yield _outcome(step, "not proved", f"not run: the {limit_s:g} s of the whole check are over", {}, 0)
            continue
        tell(f"{step.name} ...")
        outcome = run_one(step, place, min(step.limit_s, left_s))
        hung = step.name if outcome.hung else ""
        tell(f"{step.name}: {outcome.status}{': ' if outcome.reason else ''}{outcome.reason} ({outcome.seconds:.1f} s)")
        yield outcome


def run_one(step: Step, place: Place, limit_s: float) -> Outcome:
    """Runs a step on a thread of its own, so that one that hangs is seen."""
    came: list[Outcome] = []
    began = monotonic_ns()

    def attempt() -> None:
        status: Status = "proved"
        reason, figures = "", {}
        try:
            if not place.gpu and step.without_gpu == "not run":
                raise NotProved("no GPU here")
            figures = step.run(place)
            if not place.gpu and step.without_gpu == "rehearsed":
                status, reason = "not proved", "no GPU here; the figures are of the same step on the CPU"
        except NotProved as missing:
            status, reason, figures = "not proved", str(missing), missing.figures
        except ImportError as missing:
            status, reason = "not proved", f"a package is missing here: {missing}"
        except Failed as failed:
            status, reason, figures = "failed", str(failed), failed.figures
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            status, reason = "failed", f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        came.append(_outcome(step, status, reason, figures, (monotonic_ns() - began) / 1e9))

    thread = threading.Thread(target=attempt, name=step.name, daemon=True)
    thread.start()
    thread.join(limit_s)
    return came[0] if came else _outcome(step, "failed", f"no end within {limit_s:.0f} s", {}, limit_s)


def _outcome(step: Step, status: Status, reason: str, figures: dict[str, Any], seconds: float) -> Outcome:
    return Outcome(step.name, step.part, step.claims, status, reason, figures, round(seconds, 2))
