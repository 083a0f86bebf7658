"""Model Analyzer's configuration (``config.yml`` of ``model-analyzer profile -f``), read into sweeps of ours.

The meaning of its options is that of Model Analyzer's ``docs/config.md`` and ``docs/config_search.md``. Nothing is left
out without a word: what has no counterpart, and would change what is measured, is in ``not_understood``; what only says
where Model Analyzer runs and writes is in ``ignored``.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.config.schema import FieldType, MessageType, root
from workbench.errors import InvalidRequest, NotFound

CONCURRENCY = (1, 1024)
MODEL_BATCH = (1, 128)
INSTANCES = (1, 5)
"""Ends of Model Analyzer's automatic search, where the file names no others."""

_ELSEWHERE = (
    "checkpoint_", "client_max_retries", "client_protocol", "config_file", "duration_seconds", "export_path",
    "filename_", "gpu_output_fields", "inference_output_fields", "latency_report", "model_repository",
    "monitoring_interval", "num_configs_per_model", "num_top_model_configs", "output_model_repository",
    "override_output", "perf_analyzer_cpu_util", "perf_analyzer_max_auto", "perf_analyzer_path",
    "perf_analyzer_timeout", "perf_output", "plots", "reload_model_disable", "server_output_fields", "skip_",
    "triton_docker", "triton_grpc", "triton_http", "triton_install", "triton_launch", "triton_metrics",
    "triton_output", "triton_server_path", "always_report", "mode", "collect_cpu_metrics", "gpus",
)  # fmt: skip
"""Beginnings of options that say how Model Analyzer runs, not what is measured."""

_FLAGS = {
    "input-data",
    "measurement-interval",
    "measurement-mode",
    "measurement-request-count",
    "request-distribution",
    "streaming",
    "percentile",
    "warmup-request-count",
}


_COUNT = 50
"""perf_analyzer's measurement-request-count where none is given."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What is to be measured of one model.

    ``grid`` has the values of each configuration path, as ``server.sweep`` takes it; ``concurrency``, ``rate`` and
    ``batch_sizes`` the loads; ``options`` more for ``sweep``. ``objectives`` have their weights, ``p99_ms`` and
    ``min_throughput`` (infer/s) are its constraints, None where there is none. ``not_understood`` says in words what
    is left out.
    """

    model: str
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    concurrency: tuple[int, ...] = ()
    rate: tuple[float, ...] = ()
    batch_sizes: tuple[int, ...] = (1,)
    options: Mapping[str, Any] = field(default_factory=dict)
    objectives: Mapping[str, float] = field(default_factory=dict)
    p99_ms: float | None = None
    min_throughput: float | None = None
    notes: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """How many load points it is."""
        loads = len(self.concurrency) + len(self.rate) or 1
        return math.prod(len(values) for values in self.grid.values()) * loads * len(self.batch_sizes)

    def sweeps(self) -> Iterator[dict[str, Any]]:
        """Arguments of ``server.sweep(model, **arguments)``, one set for each batch size."""
        for size in self.batch_sizes:
            loads: dict[str, Any] = {"concurrency": list(self.concurrency)} if self.concurrency else {}
            loads |= {"rate": list(self.rate)} if self.rate else {}
            yield {"grid": dict(self.grid), **loads, "batch_size": size, **self.options}

    def run(self, server: Any, **more: Any) -> list[Any]:
        """Measures it: the results of ``server.sweep``, one for each batch size.

        Args:
            server: what ``serve``, ``Engine``, ``connect`` or ``attach`` gave.
            more: arguments of ``sweep`` that go before those of the file (``duration_s``, ``store``, ...).
        """
        return [server.sweep(self.model, **{**arguments, **more}) for arguments in self.sweeps()]

    def commands(self) -> list[str]:
        """The same as command lines."""
        out = []
        for size in self.batch_sizes:
            words = ["workbench", "sweep", self.model]
            for path, values in self.grid.items():
                words += ["--set", f"'{path}={json.dumps(list(values))}'"]
            words += ["--concurrency", ",".join(map(str, self.concurrency))] if self.concurrency else []
            words += ["--rate", ",".join(f"{each:g}" for each in self.rate)] if self.rate else []
            words += ["-b", str(size)] if size != 1 else []
            words += self._flags()
            out.append(" ".join(words))
        return out

    def _flags(self) -> list[str]:
        """The options as words of a command line."""
        words = []
        if "duration_s" in self.options:
            words += ["-p", f"{1000 * self.options['duration_s']:g}"]
        if "requests" in self.options:
            words += ["--measurement-mode", "count_windows"]
            words += ["--measurement-request-count", str(self.options["requests"])]
        if "inputs" in self.options:
            words += ["--input-data", shlex.quote(str(self.options["inputs"]))]
        if "distribution" in self.options:
            words += ["--request-distribution", str(self.options["distribution"])]
        return [*words, "--streaming"] if self.options.get("streaming") else words


@dataclass(frozen=True, slots=True)
class ModelAnalyzerConfig:
    """A file of Model Analyzer: a plan for each of its models, and what was left out of it."""

    path: Path
    models: tuple[ModelPlan, ...]
    not_understood: tuple[str, ...]
    ignored: tuple[str, ...]

    def __getitem__(self, model: str) -> ModelPlan:
        for plan in self.models:
            if plan.model == model:
                return plan
        raise KeyError(
            f"no model {model!r} in {self.path.name}; it has {', '.join(each.model for each in self.models)}"
        )

    def __repr__(self) -> str:
        lines = [f"{self.path.name} of Model Analyzer: {len(self.models)} models"]
        for plan in self.models:
            goal = f", p99 <= {plan.p99_ms:g} ms" if plan.p99_ms is not None else ""
            goal += f", at least {plan.min_throughput:g} infer/s" if plan.min_throughput is not None else ""
            lines.append(f"{plan.model}: {plan.points} load points{goal}")
            lines += [
                f"  {path}: {', '.join(json.dumps(each) for each in values)}" for path, values in plan.grid.items()
            ]
            lines += [f"  $ {command}" for command in plan.commands()]
            lines += [f"  note: {text}" for text in plan.notes]
            lines += [f"  not understood: {text}" for text in plan.not_understood]
        lines += [f"not understood: {text}" for text in self.not_understood]
        if self.ignored:
            lines.append(f"without meaning here: {', '.join(self.ignored)}")
        return "\n".join(lines)


def read_model_analyzer(path: str | Path) -> ModelAnalyzerConfig:
    """Reads Model Analyzer's YAML: ``wb.read_model_analyzer("config.yml")["resnet"].run(server)``.

    Args:
        path: the file of ``model-analyzer profile -f FILE``.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it is no YAML, names no models, or a value cannot be read.
    """
    path = Path(path)
    written = _yaml(path)
    models = _models(written.get("profile_models"), path)
    known = {"profile_models", "objectives", "constraints", "latency_budget", "min_throughput", "concurrency",
             "batch_sizes", "request_rate", "perf_analyzer_flags"}  # fmt: skip
    ignored, not_understood = [], []
    for name, value in written.items():
        if name in known or name.startswith("run_config_search_") or name == "request_rate_search_enable":
            continue
        if name.startswith(_ELSEWHERE):
            ignored.append(name)
        else:
            not_understood.append(f"{name}: {_short(value)}")
    try:
        plans = tuple(_Plan(name, own, written, path).made() for name, own in models.items())
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"the file cannot be read: {error}", where=str(path)) from error
    return ModelAnalyzerConfig(path, plans, tuple(not_understood), tuple(ignored))


def _yaml(path: Path) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFound("there is no such file", where=str(path)) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"the file cannot be read: {' '.join(str(error).split())}", where=str(path)) from error
    if not isinstance(found, dict):
        raise InvalidRequest("this is no configuration of Model Analyzer: it has no options", where=str(path))
    return {str(name): value for name, value in found.items()}


def _models(written: Any, path: Path) -> dict[str, dict[str, Any]]:
    if isinstance(written, str):
        written = [name.strip() for name in written.split(",") if name.strip()]
    if isinstance(written, list):
        entries = [each if isinstance(each, dict) else {str(each): None} for each in written]
        written = {name: own for entry in entries for name, own in entry.items()}
    if not isinstance(written, dict) or not written:
        raise InvalidRequest(
            "the file names no models", where=str(path), hint="profile_models: a name, a list of names, or sections"
        )
    return {str(name): dict(own or {}) for name, own in written.items()}


class _Plan:
    """Reads the section of one model; what it does not say, the file says for all."""

    def __init__(self, model: str, own: dict[str, Any], whole: Mapping[str, Any], path: Path) -> None:
        self._model = model
        self._own = own
        self._whole = whole
        self._path = path
        self._missing: list[str] = []
        self._notes: list[str] = []

    def made(self) -> ModelPlan:
        own, parameters = self._own, dict(self._own.get("parameters") or {})
        for name in own:
            if name not in (
                "parameters",
                "model_config_parameters",
                "objectives",
                "constraints",
                "perf_analyzer_flags",
            ):
                self._missing.append(f"{name}: {_short(own[name])}")
        loads = {name: _numbers(parameters.pop(name, self._whole.get(name)), name)
                 for name in ("concurrency", "request_rate", "batch_sizes")}  # fmt: skip
        self._missing += [f"parameters.{name}: {_short(value)}" for name, value in parameters.items()]
        grid = self._grid(own.get("model_config_parameters") or {})
        concurrency = [int(each) for each in loads["concurrency"]]
        manual = bool(grid) or any(loads[name] for name in ("concurrency", "request_rate"))
        if not manual and not self._whole.get("run_config_search_disable"):
            grid = self._automatic_grid()
        if not concurrency and not loads["request_rate"]:
            concurrency = self._automatic_concurrency()
        options = self._flags()
        p99, least = self._constraints()
        return ModelPlan(
            self._model, grid, tuple(concurrency), tuple(loads["request_rate"]),
            tuple(int(each) for each in loads["batch_sizes"]) or (1,), options, self._objectives(), p99, least,
            tuple(self._notes), tuple(self._missing),
        )  # fmt: skip

    # -- configuration --------------------------------------------------------------------------------------------

    def _grid(self, written: Mapping[str, Any]) -> dict[str, list[Any]]:
        grid: dict[str, list[Any]] = {}
        for name, value in written.items():
            self._place(root(), str(name), str(name), value, grid)
        return grid

    def _place(self, inside: MessageType, name: str, path: str, value: Any, grid: dict[str, list[Any]]) -> None:
        kind = inside.find(name)
        if kind is None:
            self._missing.append(f"model_config_parameters: config.pbtxt has no field {path}")
        elif kind.is_map and isinstance(value, dict):
            entry = kind.body.fields["value"]
            for key, each in value.items():
                at = f"{path}[{json.dumps(str(key))}]"
                if entry.message is not None and isinstance(each, dict):
                    for part, item in each.items():
                        self._place(entry.body, str(part), f"{at}.{part}", item, grid)
                else:
                    grid[at] = _listed(each)
        elif kind.repeated:
            grid[path] = _values_of_list(kind, value)
        elif kind.message is not None and isinstance(value, dict) and value:
            for part, item in value.items():
                self._place(kind.body, str(part), f"{path}.{part}", item, grid)
        else:
            grid[path] = [{} if each is None and kind.message is not None else each for each in _listed(value)]

    def _automatic_grid(self) -> dict[str, list[Any]]:
        """Model Analyzer's search begins with these; all of them are measured here."""
        low, high = self._ends("model_batch_size", MODEL_BATCH)
        first, last = self._ends("instance_count", INSTANCES)
        counts = [[{"count": count, "kind": "KIND_CPU" if self._own.get("cpu_only") else "KIND_AUTO"}]
                  for count in range(first, last + 1)]  # fmt: skip
        self._notes.append("nothing is listed: the ranges of Model Analyzer's automatic search, as a whole grid")
        return {"max_batch_size": _doubled(low, high), "instance_group": counts, "dynamic_batching": [{}]}

    def _automatic_concurrency(self) -> list[int]:
        if self._whole.get("run_config_search_disable"):
            return [1]
        if self._whole.get("request_rate_search_enable"):
            self._missing.append("request_rate_search_enable: name the rates (parameters.request_rate)")
        low, high = self._ends("concurrency", CONCURRENCY)
        return _doubled(low, high)

    def _ends(self, name: str, default: tuple[int, int]) -> tuple[int, int]:
        low, high = (self._whole.get(f"run_config_search_{end}_{name}") for end in ("min", "max"))
        return int(low or default[0]), int(high or default[1])

    # -- load and goals -------------------------------------------------------------------------------------------

    def _flags(self) -> dict[str, Any]:
        flags = {**(self._whole.get("perf_analyzer_flags") or {}), **(self._own.get("perf_analyzer_flags") or {})}
        options: dict[str, Any] = {}
        if "measurement-interval" in flags:
            options["duration_s"] = float(flags["measurement-interval"]) / 1000
        if "input-data" in flags:
            given = flags["input-data"]
            if given in ("random", "zero") or not isinstance(given, str):
                self._missing.append(f"perf_analyzer_flags.input-data: {_short(given)}; give inputs=... to run()")
            else:
                options["inputs"] = given
        if flags.get("measurement-mode") == "count_windows":
            options["requests"] = int(flags.get("measurement-request-count", _COUNT))
        elif "measurement-request-count" in flags:
            self._notes.append("measurement-request-count says nothing without measurement-mode: count_windows")
        if "request-distribution" in flags:
            options["distribution"] = str(flags["request-distribution"])
        if flags.get("streaming"):
            options["streaming"] = True
        if str(flags.get("percentile", "99")) != "99":
            self._missing.append(f"perf_analyzer_flags.percentile: {flags['percentile']}; points have p50 to p99")
        if "warmup-request-count" in flags:
            self._notes.append("warm-up is by time here: warmup_s")
        self._missing += [f"perf_analyzer_flags.{name}: {_short(value)}" for name, value in flags.items()
                          if name not in _FLAGS]  # fmt: skip
        return options

    def _objectives(self) -> dict[str, float]:
        written = self._own.get("objectives", self._whole.get("objectives")) or {"perf_throughput": 1}
        if isinstance(written, str):
            written = [each.strip() for each in written.split(",")]
        weights = {str(each): 1.0 for each in written} if isinstance(written, list) else dict(written)
        found = {}
        for name, weight in weights.items():
            if name in ("perf_throughput", "perf_latency_p99", "perf_latency"):
                found[
                    name.replace("perf_latency_p99", "p99_ms").replace("perf_latency", "p99_ms").replace("perf_", "")
                ] = float(weight or 1)
            else:
                self._missing.append(f"objective {name}")
        if len(found) > 1 or "p99_ms" in found:
            said = ", ".join(f"{name} × {weight:g}" for name, weight in found.items())
            self._notes.append(f"objectives {said}: result.best() takes the highest throughput within p99_ms")
        return found

    def _constraints(self) -> tuple[float | None, float | None]:
        written = {**(self._whole.get("constraints") or {}), **(self._own.get("constraints") or {})}
        p99, least = self._whole.get("latency_budget"), self._whole.get("min_throughput")
        for name, bounds in written.items():
            for end, value in (bounds or {}).items():
                if (name, end) in (("perf_latency_p99", "max"), ("perf_latency", "max")):
                    p99 = value
                elif (name, end) == ("perf_throughput", "min"):
                    least = value
                else:
                    self._missing.append(f"constraint {name} {end} {_short(value)}")
        if least is not None:
            self._notes.append(
                f"at least {float(least):g} infer/s: result.best() is the most that holds the latency goal; see "
                "whether it is enough"
            )
        return None if p99 is None else float(p99), None if least is None else float(least)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _values_of_list(kind: FieldType, value: Any) -> list[Any]:
    """The values of a field that is a list itself: a list of lists is swept, a list is one value.

    Lists inside the messages of one value are swept, too (``instance_group: [{kind: KIND_CPU, count: [1, 2]}]``).
    """
    values = value if isinstance(value, list) and value and all(isinstance(each, list) for each in value) else [value]
    out: list[Any] = []
    for each in values:
        items = each if isinstance(each, list) else [each]
        if kind.message is None:
            out.append(items)
            continue
        ways = [_ways(kind.body, item or {}) for item in items]
        out += [list(chosen) for chosen in itertools.product(*ways)]
    return out


def _ways(inside: MessageType, item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages that one with lists of values stands for."""
    choices = []
    for name, value in item.items():
        kind = inside.find(str(name))
        swept = isinstance(value, list) and (kind is None or not kind.repeated)
        choices.append([(name, each) for each in (value if swept else [value])])
    return [dict(pairs) for pairs in itertools.product(*choices)]


def _numbers(value: Any, name: str) -> list[float]:
    """``1,2,4``, a list, a number, or ``start``, ``stop`` and ``step``, both ends included."""
    if value is None:
        return []
    if isinstance(value, dict):
        if "stop" not in value or not float(value.get("step", 1)) > 0:
            raise ValueError(f"{name} needs start, stop and a step above 0, got {value}")
        start, stop, step = float(value.get("start", 1)), float(value["stop"]), float(value.get("step", 1))
        return [start + index * step for index in range(int((stop - start) / step + 1e-9) + 1)]
    items = value.split(",") if isinstance(value, str) else _listed(value)
    try:
        return [float(each) for each in items]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is no list of numbers: {_short(value)}") from error


def _doubled(low: int, high: int) -> list[int]:
    values = [max(1, low)]
    while values[-1] * 2 <= high:
        values.append(values[-1] * 2)
    return values


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
