"""What to sweep: lists of values as text, and the grid, the loads and the time that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import ipywidgets as W

from workbench.errors import InvalidRequest

DELAY = "dynamic_batching.max_queue_delay_microseconds"
BATCH = "max_batch_size"
PREFERRED = "dynamic_batching.preferred_batch_size"
INSTANCES = "instance_group[0].count"
GRID = (BATCH, DELAY, PREFERRED, INSTANCES)
OVERHEAD_S = 0.6
"""What a point takes beside warm-up and window: applying, starting the generator."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep as it can be started: ``grid`` by path, ``load`` as the options of ``Server.sweep``."""

    model: str
    grid: Mapping[str, list[Any]]
    load: Mapping[str, Any]
    goal_p99_ms: float | None
    notes: tuple[str, ...] = field(default=())

    @property
    def configurations(self) -> int:
        """How many combinations."""
        return len(list(product(*self.grid.values())))

    @property
    def points(self) -> int:
        """How many load points."""
        return self.configurations * len(self.load.get("concurrency") or self.load.get("rate") or [1])

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        return self.points * (float(self.load["duration_s"]) + float(self.load["warmup_s"]) + OVERHEAD_S)


def numbers(text: str, name: str, *, minimum: int = 0) -> list[int]:
    """Whole numbers from text with commas or spaces.

    Raises:
        InvalidRequest: something that is not one, or is below ``minimum``.
    """
    out = []
    for part in text.replace(",", " ").split():
        if not part.isdigit() or int(part) < minimum:
            raise InvalidRequest(f"{name}: {part!r} is not a whole number from {minimum} on")
        out.append(int(part))
    return list(dict.fromkeys(out))


def number_lists(text: str, name: str) -> list[list[int]]:
    """Lists of whole numbers, separated by semicolons: ``4, 8; 16``.

    Raises:
        InvalidRequest: something that is not a number.
    """
    return [numbers(part, name, minimum=1) for part in text.split(";") if part.strip()]


def rates(text: str) -> list[float]:
    """Rates above 0.

    Raises:
        InvalidRequest: something that is not one.
    """
    out = []
    for part in text.replace(",", " ").split():
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e6:
            raise InvalidRequest(f"rate: {part!r} is not a number of requests a second")
        out.append(value)
    return list(dict.fromkeys(out))


class SweepForm:
    """The widgets, and the plan that they stand for; ``on_change`` is called at every change."""

    def __init__(self, models: list[str], model: str | None, on_change: Callable[[], None]) -> None:
        self.model = _labelled(W.Dropdown(options=models, value=model), "model")
        self.batch = _list("max_batch_size", "1, 8, 32", "Sizes to try, as in: 1, 8, 32. Empty: as configured")
        self.delay = _list("max_queue_delay (µs)", "0, 500", "max_queue_delay_microseconds. Empty: as configured")
        self.preferred = _list("preferred_batch_size", "", "Lists to try, as in: 4, 8; 16. Empty: as configured")
        self.instances = _list("instance_group.count", "", "Numbers of instances to try. Empty: as configured")
        self.kind = _labelled(W.Dropdown(options=["concurrency", "requests/s"], value="concurrency"), "load")
        self.load = _list("load values", "1, 8, 32", "Clients that wait for their answer, or requests a second")
        self.seconds = _labelled(W.BoundedFloatText(value=2.0, min=0.2, max=600, step=0.5), "seconds a point")
        self.goal = _labelled(W.BoundedFloatText(value=100.0, min=0.0, max=1e6, step=5), "goal: p99 (ms)")
        self.goal.tooltip = "Latency goal; 0: none"
        self.estimate = W.HTML()
        self._widgets = [
            self.model, self.batch, self.delay, self.preferred, self.instances, self.kind, self.load, self.seconds,
            self.goal,
        ]  # fmt: skip
        for widget in self._widgets:
            widget.observe(lambda _: on_change(), "value")
        self.box = W.VBox([*self._widgets, self.estimate], layout=W.Layout(width="306px", flex="0 0 auto"))

    def plan(self) -> Plan:
        """What would be measured.

        Raises:
            InvalidRequest: a list that cannot be read, or nothing to measure.
        """
        if not self.model.value:
            raise InvalidRequest("there is no model to sweep")
        grid: dict[str, list[Any]] = {
            BATCH: list(numbers(self.batch.value, "max_batch_size")),
            DELAY: list(numbers(self.delay.value, "max_queue_delay")),
            PREFERRED: list(number_lists(self.preferred.value, "preferred_batch_size")),
            INSTANCES: list(numbers(self.instances.value, "instance_group.count", minimum=1)),
        }
        load: dict[str, Any] = {"duration_s": self.seconds.value, "warmup_s": min(0.5, self.seconds.value / 4)}
        if self.kind.value == "concurrency":
            load["concurrency"] = numbers(self.load.value, "concurrency", minimum=1)
        else:
            load["rate"] = rates(self.load.value)
        if not (load.get("concurrency") or load.get("rate")):
            raise InvalidRequest(f"give at least one value of {self.kind.value}")
        chosen = {path: values for path, values in grid.items() if values}
        goal = float(self.goal.value)
        return Plan(str(self.model.value), chosen, load, goal if goal > 0 else None)

    def lock(self, locked: bool) -> None:
        """No changes while a sweep runs; the goal may be moved at any time."""
        for widget in self._widgets:
            widget.disabled = locked and widget is not self.goal


def _labelled(widget: Any, label: str) -> Any:
    widget.description = label
    widget.layout = W.Layout(width="300px")
    widget.style.description_width = "148px"
    return widget


def _list(label: str, value: str, help_text: str) -> Any:
    widget = _labelled(W.Text(value=value, placeholder="as configured", continuous_update=False), label)
    widget.tooltip = help_text
    return widget


def settings_label(settings: Mapping[str, Any]) -> str:
    """A configuration of the grid in a few words."""
    names = {BATCH: "max_batch {}", DELAY: "delay {} µs", PREFERRED: "preferred {}", INSTANCES: "{} instances"}
    parts = []
    for path, setting in settings.items():
        text = ", ".join(map(str, setting)) if isinstance(setting, list | tuple) else str(setting)
        if setting is None:
            parts.append(f"no {path.rpartition('.')[2]}")
        else:
            parts.append(names.get(path, path.rpartition(".")[2] + " {}").format(text))
    return " · ".join(parts) or "as configured"
