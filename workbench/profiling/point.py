"""One measured load point: every figure with its number of requests, interval, configuration and verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from workbench.profiling.claims import Claim, claim_of
from workbench.profiling.class_side import ClassFigures
from workbench.profiling.figures import Figures, given_fields
from workbench.profiling.load import Load
from workbench.profiling.settings import by_model

if TYPE_CHECKING:
    from workbench.config import Edit


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Figures):
    """A load point of one model under one configuration; ``Figures`` says what its latencies and throughput are.

    The queue and compute times are means of the server's statistics over the window, as perf_analyzer defines them (of
    an ensemble: the sums of its steps' means).

    ``valid`` False means that the figures must not be believed; ``stable`` False that they had not settled (or that the
    server could not keep up); ``reasons`` says why, ``notes`` what else to know. ``error`` is set for a point that
    could not be measured at all.
    """

    model: str
    load: Load
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The values of the sweep's grid, by path."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The configuration as read back from the server."""
    step_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Those of the ensemble's steps that the sweep set something of, as read back."""
    epoch: int | None = None
    url: str = ""
    protocol: str = ""
    started: str = ""
    duration_s: float = math.nan

    mean_batch: float = math.nan
    request_ms: float = math.nan
    queue_ms: float = math.nan
    compute_input_ms: float = math.nan
    compute_infer_ms: float = math.nan
    compute_output_ms: float = math.nan
    overhead_ms: float = math.nan
    cache_hits: int = 0
    cache_misses: int = 0
    cache_hit_ms: float = math.nan
    """Mean of looking up and copying an answer out of the response cache."""
    cache_miss_ms: float = math.nan
    batch_rows: Mapping[int, int] = field(default_factory=dict)
    """Executions by rows, from the statistics."""
    batch_compute_ms: Mapping[int, float] = field(default_factory=dict)
    batch_reasons: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Executions by reason and rows, from the records; empty where the server keeps none."""

    valid: bool = False
    stable: bool = False
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    littles_law: float = math.nan
    """Mean number under way / (throughput x mean latency); 1 when the books are in order."""
    generator_cpu: float = math.nan
    """CPUs that the generator used."""
    server_cpu: float = math.nan
    other_cpu: float = math.nan
    stolen_cpu: float = math.nan
    """Of ``other_cpu``, what a hypervisor gave to other machines."""
    inputs: str = ""
    seed: int = 0
    classes: Mapping[str, ClassFigures] = field(default_factory=dict)
    """Figures of each class, of a load that has several."""
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def concurrency(self) -> int | None:
        """Clients of a closed loop; None for an open one."""
        return self.load.concurrency if self.load.kind == "closed" else None

    @property
    def rate(self) -> float | None:
        """Requests/s offered by an open loop; None for a closed one."""
        return self.load.rate if self.load.kind == "open" else None

    def edits(self, model: str = "") -> list[Edit]:
        """The edits that apply the point's settings to its model's configuration, or to that of an ensemble's step."""
        return edits_of(by_model(self.settings, self.model).get(model or self.model, {}))

    @property
    def verdict(self) -> str:
        """``valid``, ``not stable``, ``not valid`` or ``failed``."""
        if self.error:
            return "failed"
        if not self.valid:
            return "not valid"
        return "valid" if self.stable else "not stable"

    def claim(self, *, p99_ms: float) -> Claim:
        """Whether p99 is shown to hold a goal in milliseconds, with 99 % confidence, and if not, what it would take."""
        return claim_of(p99_ms, self.n, self.p99_worth, (self.p99_ms, self.p99_low), self.p99_claimable_ms)

    def row(self) -> dict[str, Any]:
        """The point as one flat row: the grid's values, the load, the figures."""
        load = self.load
        row: dict[str, Any] = {"model": self.model}
        row |= dict(self.settings)
        row |= {
            "load": load.kind,
            "concurrency": self.concurrency,
            "rate": self.rate,
            "distribution": load.distribution if load.kind == "open" else None,
            "batch_size": load.batch_size,
            "label": load.label,
            "verdict": self.verdict,
        }
        skip = {"model", "load", "settings", "config", "environment", "errors", "batch_rows", "batch_compute_ms"}
        skip |= {"batch_reasons", "classes"}
        if not load.streaming:
            skip |= {item.name for item in fields(self) if item.name.startswith(_OF_STREAMS)}
        for item in fields(self):
            if item.name not in skip:
                value = getattr(self, item.name)
                row[item.name] = "; ".join(value) if isinstance(value, tuple) else value
        for name, figures in self.classes.items():
            row |= figures.row(name)
        row["max_batch_size"] = self.config.get("max_batch_size")
        return row

    def to_json(self) -> dict[str, Any]:
        """In full, as a dictionary for JSON; nan becomes None."""
        out = {**asdict(self), "load": self.load.to_json(), "label": self.load.label}
        return {name: _jsonable(value) for name, value in out.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Point:
        """Reads what ``to_json`` gave."""
        given = given_fields(cls, value)
        given["load"] = Load.from_json(given["load"])
        given["classes"] = {
            str(name): ClassFigures.from_json(figures) for name, figures in (given.get("classes") or {}).items()
        }
        for name in ("reasons", "notes"):
            given[name] = tuple(given.get(name, ()))
        given["batch_rows"] = {int(size): count for size, count in (given.get("batch_rows") or {}).items()}
        given["batch_compute_ms"] = {int(size): ms for size, ms in (given.get("batch_compute_ms") or {}).items()}
        given["batch_reasons"] = {
            reason: {int(size): count for size, count in sizes.items()}
            for reason, sizes in (given.get("batch_reasons") or {}).items()
        }
        return cls(**given)

    def __repr__(self) -> str:
        settings = ", ".join(f"{path}={value}" for path, value in self.settings.items())
        head = f"{self.model}, {self.load.label}" + (f", {settings}" if settings else "")
        if self.error:
            return f"{head}: failed: {self.error}"
        lines = [
            f"{head}: {self.verdict}",
            f"  {self.throughput:.1f} infer/s {_interval(self.throughput_low, self.throughput_high, 1)}, "
            f"{self.n} requests in {self.duration_s:.1f} s, {self.failed} failed",
            f"  latency ms  p50 {self.p50_ms:.2f} {_interval(self.p50_low, self.p50_high)}  p90 {self.p90_ms:.2f}  "
            f"p95 {self.p95_ms:.2f}  p99 {self.p99_ms:.2f} {_interval(self.p99_low, self.p99_high)}",
            f"  server ms   queue {self.queue_ms:.2f}  input {self.compute_input_ms:.2f}  infer "
            f"{self.compute_infer_ms:.2f}  output {self.compute_output_ms:.2f}  mean batch {self.mean_batch:.2f}",
            f"  books       sent {self.sent}, Little's law {self.littles_law:.2f} (requests under way / throughput × "
            "mean latency)",
        ]
        if self.cache_hits or self.cache_misses:
            lines.append(
                f"  cache       {self.cache_hits} hits of {self.cache_hit_ms:.3f} ms, {self.cache_misses} misses of "
                f"{self.cache_miss_ms:.3f} ms and their compute"
            )
        if self.load.streaming:
            lines[3:3] = self._stream_lines()
        lines += [figures.line(name) for name, figures in self.classes.items()]
        lines += [f"  failed      {text}" for text in list(self.errors)[:3]]
        lines += [f"  why: {reason}" for reason in self.reasons]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _stream_lines(self) -> list[str]:
        lines = [f"  responses   {self.responses_per_s:.1f}/s, {self.responses_per_request:.1f} a request"]
        for name, title in (("first_response", "first ms   "), ("between_responses", "between ms ")):
            figure = {part: getattr(self, f"{name}_{part}") for part in _STREAM_PARTS}
            lines.append(
                f"  {title} p50 {figure['p50_ms']:.2f} {_interval(figure['p50_low'], figure['p50_high'])}  "
                f"p90 {figure['p90_ms']:.2f}  p99 {figure['p99_ms']:.2f} "
                f"{_interval(figure['p99_low'], figure['p99_high'])}  n {figure['n']}"
            )
        return lines


_STREAM_PARTS = ("n", "p50_ms", "p50_low", "p50_high", "p90_ms", "p99_ms", "p99_low", "p99_high")
_OF_STREAMS = ("first_response_", "between_responses_", "responses_per_")


def _interval(low: float, high: float, digits: int = 2) -> str:
    def text(value: float) -> str:
        return "?" if math.isnan(value) else f"{value:.{digits}f}"

    return f"[{text(low)}, {text(high)}]"


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    return value


def edits_of(settings: Mapping[str, Any]) -> list[Edit]:
    """Edits that set the values of a grid by path; None removes the field."""
    from workbench.config import Edit

    return [Edit(path, "remove") if value is None else Edit(path, "set", value) for path, value in settings.items()]
