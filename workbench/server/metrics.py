"""``/metrics``: Triton's metric names in Prometheus' text format (reference: metrics.cc, metric_model_reporter.cc)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from workbench import telemetry
from workbench.backends.custom_metrics import FamilyValues, number_text
from workbench.errors import WorkbenchError
from workbench.server.guard import HostGuard
from workbench.server.http import Exchange

if TYPE_CHECKING:
    from workbench.engine import InferenceEngine, VersionSnapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")

# name, help, what of Triton's statistics it shows: (block, field), durations in microseconds
_COUNTERS: tuple[tuple[str, str, str, str], ...] = (
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes", "success", "count"),
    ("nv_inference_count", "Number of inferences performed (does not include cached requests)", "", "inference_count"),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        "",
        "execution_count",
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        "success",
        "ns",
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        "queue",
        "ns",
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        "compute_input",
        "ns",
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        "compute_infer",
        "ns",
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        "compute_output",
        "ns",
    ),
)

OWN: dict[str, str] = {
    **{name: "counter" for name, _, _, _ in _COUNTERS},
    "nv_inference_request_failure": "counter",
    "nv_inference_pending_request_count": "gauge",
    "nv_model_load_duration_secs": "gauge",
}
"""The families of models, by name: their kinds."""

Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]


class MetricsApi:
    """The application behind the metrics port."""

    def __init__(self, engine: InferenceEngine, interval_s: float = 2.0, guard: HostGuard | None = None) -> None:
        self._engine = engine
        self._guard = guard
        engine.custom_metrics.reserve(OWN)
        self._interval_s = interval_s
        self._devices: telemetry.DeviceSample | None = None
        self._sampled = 0.0

    def early_refusal(self, exchange: Exchange, size: int | None) -> tuple[int, str] | None:
        """Host and Origin, as on the HTTP port; a body has no place here."""
        headers = exchange.headers
        if self._guard is not None:
            refusal = self._guard.refusal(headers.get(b"host", b""), headers.get(b"origin", b""))
            if refusal:
                return 403, refusal
        return (413, "metrics take no body") if size else None

    def handle(self, exchange: Exchange) -> None:
        """Answers ``GET /metrics``."""
        if exchange.method not in (b"GET", b"HEAD"):
            exchange.error(405, "Method Not Allowed")
        elif exchange.path != b"/metrics":
            exchange.error(404, "Not Found")
        else:
            self._answer(exchange)

    def _answer(self, exchange: Exchange) -> None:
        now, devices = exchange.loop.time(), self._devices
        if devices is None or now - self._sampled >= self._interval_s:
            # asking a GPU's driver takes milliseconds that the loop must not spend
            self._sampled = now
            sampling = exchange.loop.run_in_executor(None, telemetry.sample)
            sampling.add_done_callback(lambda done: self._finish(exchange, done.result()))
        else:
            self._finish(exchange, devices)

    def _finish(self, exchange: Exchange, devices: telemetry.DeviceSample) -> None:
        self._devices = devices
        try:
            exchange.respond(200, exposition(self._engine, devices).encode(), CONTENT_TYPE)
        except Exception as error:  # the answer, whatever it is
            exchange.fail(error)


def exposition(engine: InferenceEngine, devices: telemetry.DeviceSample) -> str:
    """All metrics as text."""
    lines: list[str] = []
    custom = {family.name: family for family in engine.custom_metrics.values()}
    for name, kind, text, samples in _families(engine, devices):
        _head_lines(lines, name, kind, text)
        for labels, value in samples:
            lines.append(_line(name, labels, value))
        if name in custom:  # a model may add rows to a family of the server's own, as in Triton
            lines += _custom_lines(custom.pop(name))
    for family in custom.values():
        _head_lines(lines, family.name, family.kind, family.text)
        lines += _custom_lines(family)
    return "\n".join(lines) + "\n"


def _head_lines(lines: list[str], name: str, kind: str, text: str) -> None:
    # Triton writes a text as it stands; a line break in it would make the page unreadable
    lines.append(f"# HELP {name} {text}".replace("\\", "\\\\").replace("\n", "\\n"))
    lines.append(f"# TYPE {name} {kind}")


def _custom_lines(family: FamilyValues) -> list[str]:
    return [_line(family.name + part, labels, value) for part, labels, value in family.rows]


def _line(name: str, labels: Labels, value: float) -> str:
    inner = ",".join(f'{key}="{_escape(item)}"' for key, item in labels)
    return f"{name}{{{inner}}} {number_text(value)}" if inner else f"{name} {number_text(value)}"


Family = tuple[str, str, str, Iterable[Sample]]


def _families(engine: InferenceEngine, devices: telemetry.DeviceSample) -> Iterator[Family]:
    statistics = engine.statistics()["model_stats"]
    gauges = _model_gauges(engine)
    yield (*_head(0), [(_labels(entry), _value(entry, 0)) for entry in statistics])
    yield (
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        [
            ((("model", entry["name"]), ("reason", reason), ("version", entry["version"])), float(failures[reason]))
            for entry in statistics
            for failures in [_failures(entry, gauges)]
            for reason in REASONS
        ],
    )
    for index in range(1, len(_COUNTERS)):
        yield (*_head(index), [(_labels(entry), _value(entry, index)) for entry in statistics])
    known = {(entry["name"], entry["version"]) for entry in statistics}
    yield (
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        [(_of(key), float(row.pending)) for key, row in gauges.items() if key in known],
    )
    yield (
        "nv_model_load_duration_secs",
        "gauge",
        "Model load time in seconds",
        # an ensemble's stays 0 in Triton
        [(_of(key), 0.0 if row.batching == "ensemble" else row.load_s) for key, row in gauges.items() if key in known],
    )
    yield from _device_families(devices)


def _model_gauges(engine: InferenceEngine) -> dict[tuple[str, str], VersionSnapshot]:
    found: dict[tuple[str, str], VersionSnapshot] = {}
    try:
        snapshot = engine.snapshot()
    except WorkbenchError:
        return found
    for version in snapshot.versions:
        found[(version.model, str(version.version))] = version
    return found


def _failures(entry: Mapping[str, Any], gauges: Mapping[tuple[str, str], VersionSnapshot]) -> dict[str, int]:
    row = gauges.get((entry["name"], entry["version"]))
    known = {} if row is None else row.failures
    return {reason: int(known.get(reason, 0)) for reason in REASONS}


def _head(index: int) -> tuple[str, str, str]:
    name, text, _, _ = _COUNTERS[index]
    return name, "counter", text


def _value(entry: Mapping[str, Any], index: int) -> float:
    _, _, block, field = _COUNTERS[index]
    if not block:
        return float(entry[field])
    value = entry["inference_stats"][block][field]
    return float(value // 1000 if field == "ns" else value)


def _labels(entry: Mapping[str, Any]) -> Labels:
    return (("model", str(entry["name"])), ("version", str(entry["version"])))


def _of(key: tuple[str, str]) -> Labels:
    return (("model", key[0]), ("version", key[1]))


def _device_families(devices: telemetry.DeviceSample) -> Iterator[Family]:
    gpus = [gpu for gpu in devices.gpus if gpu.uuid]
    if gpus:
        for name, text, field, kind in (
            ("nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", "utilization", "gauge"),
            ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", "memory_total_bytes", "gauge"),
            ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", "memory_used_bytes", "gauge"),
            ("nv_gpu_power_usage", "GPU power usage in watts", "power_watts", "gauge"),
            ("nv_gpu_power_limit", "GPU power management limit in watts", "power_limit_watts", "gauge"),
            (
                "nv_energy_consumption",
                "GPU energy consumption in joules since the server started",
                "energy_joules",
                "counter",
            ),
        ):
            rows = [((("gpu_uuid", gpu.uuid),), getattr(gpu, field)) for gpu in gpus]
            yield name, kind, text, [(labels, float(value)) for labels, value in rows if value is not None]
    cpu = devices.cpu
    yield "nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]", [((), cpu.utilization)]
    yield (
        "nv_cpu_memory_total_bytes",
        "gauge",
        "CPU total memory (RAM), in bytes",
        [((), float(cpu.memory_total_bytes))],
    )
    yield "nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", [((), float(cpu.memory_used_bytes))]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
