"""Triton's metrics, and names of metrics in any text (reference: metrics.cc, metric_model_reporter.cc)."""

from __future__ import annotations

import re
from typing import Literal

from workbench.config.texts.source import Change, Notes, Passage, did_you_mean, line_span

MetricKind = Literal["counter", "gauge", "histogram", "summary"]

_PARTS = ("input", "infer", "output")
METRICS: dict[str, MetricKind] = {
    "nv_inference_request_success": "counter",
    "nv_inference_request_failure": "counter",
    "nv_inference_count": "counter",
    "nv_inference_exec_count": "counter",
    "nv_inference_request_duration_us": "counter",
    "nv_inference_queue_duration_us": "counter",
    **{f"nv_inference_compute_{part}_duration_us": "counter" for part in _PARTS},
    "nv_cache_num_hits_per_model": "counter",
    "nv_cache_num_misses_per_model": "counter",
    "nv_cache_hit_duration_per_model": "counter",
    "nv_cache_miss_duration_per_model": "counter",
    "nv_inference_pending_request_count": "gauge",
    "nv_model_load_duration_secs": "gauge",
    "nv_inference_first_response_histogram_ms": "histogram",
    "nv_inference_request_summary_us": "summary",
    "nv_inference_queue_summary_us": "summary",
    **{f"nv_inference_compute_{part}_summary_us": "summary" for part in _PARTS},
    "nv_cache_hit_summary_per_model": "summary",
    "nv_cache_miss_summary_per_model": "summary",
    **{
        f"nv_cache_{name}": "gauge"
        for name in (
            "util", "num_entries", "num_hits", "num_misses", "num_lookups", "num_evictions", "lookup_duration",
            "insertion_duration",
        )
    },
    "nv_pinned_memory_pool_total_bytes": "gauge",
    "nv_pinned_memory_pool_used_bytes": "gauge",
    "nv_gpu_utilization": "gauge",
    "nv_gpu_memory_total_bytes": "gauge",
    "nv_gpu_memory_used_bytes": "gauge",
    "nv_gpu_power_usage": "gauge",
    "nv_gpu_power_limit": "gauge",
    "nv_energy_consumption": "counter",
    "nv_cpu_utilization": "gauge",
    "nv_cpu_memory_total_bytes": "gauge",
    "nv_cpu_memory_used_bytes": "gauge",
}  # fmt: skip
"""Every metric of the server by name."""

_NAME = re.compile(r"(?<![\w-])nv_[a-z0-9_]*[a-z0-9]\{(?P<labels>[^{}\n]*)\}")
_BARE = re.compile(r"(?<![\w-])nv_[a-z0-9_]*[a-z0-9](?![\w*]|_?[*<$])")
_LABEL = re.compile(r"([A-Za-z_]\w*)\s*(?:=~|!~|!=|=)\s*\"")
_SUFFIXES = ("_bucket", "_sum", "_count", "_total")
_FOREIGN = ("nv_trt_llm", "nv_llm", "nv_dcgm", "nv_vllm")
_HAS: dict[MetricKind, tuple[str, ...]] = {
    "counter": (),
    "gauge": (),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}
_OWN_LABELS = {"model", "version", "gpu_uuid", "namespace", "reason", "le", "quantile"}


def check_metrics(passage: Passage, notes: Notes) -> None:
    """Every ``nv_`` name in a passage: unknown ones, and series that its kind does not have."""
    for match in _BARE.finditer(passage.text):
        name = match.group()
        if name in METRICS or name.startswith(_FOREIGN) or any(known.startswith(name) for known in METRICS):
            continue
        suffix = next((each for each in _SUFFIXES if name.endswith(each)), "")
        base = name.removesuffix(suffix)
        if suffix and base in METRICS:
            if suffix not in _HAS[METRICS[base]]:
                _series(passage, notes, match, base, suffix)
        else:
            _unknown(passage, notes, match)
    for match in _NAME.finditer(passage.text):
        _labels(passage, notes, match)


def _series(passage: Passage, notes: Notes, match: re.Match[str], base: str, suffix: str) -> None:
    name, kind = match.group(), METRICS[base]
    text = f"Triton has no series {name}: {base} is a {kind}"
    changes: list[Change]
    if suffix == "_bucket" and kind == "counter":
        text += (
            ", not a histogram, so there are no buckets and no quantiles of it. Mean latency is "
            "rate(nv_inference_request_duration_us) / rate(nv_inference_request_success); for quantiles start the "
            "server with --metrics-config summary_latencies=true and read nv_inference_request_summary_us"
        )
        if passage.kind != "metrics" or not _is_sample(passage, match):
            notes.say(passage, "metric-series", match.span(), text)
            return
        title, changes = "Remove the sample", [(*line_span(passage.text, match.start()), "")]
    else:
        title, changes = f"Write {base}", [(*match.span(), base)]
    notes.say(passage, "metric-series", match.span(), text, title, changes)


def _is_sample(passage: Passage, match: re.Match[str]) -> bool:
    start, end = line_span(passage.text, match.start())
    return bool(re.match(r"\s*nv_\w+(?:\{[^}]*\})?\s+[-+0-9.]", passage.text[start:end]))


def _unknown(passage: Passage, notes: Notes, match: re.Match[str]) -> None:
    more, best = did_you_mean(match.group(), METRICS, 0.8)
    if passage.kind != "metrics" and best is None:
        return  # anything may begin with nv_
    text = f"Triton has no metric {match.group()}{more}"
    if best is None:
        notes.say(passage, "metric-unknown", match.span(), text)
    else:
        notes.say(passage, "metric-unknown", match.span(), text, f"Write {best}", [(*match.span(), best)])


def _labels(passage: Passage, notes: Notes, match: re.Match[str]) -> None:
    name = match.group().partition("{")[0]
    base = next((name.removesuffix(each) for each in ("", *_SUFFIXES) if name.removesuffix(each) in METRICS), None)
    if base is None:
        return
    sample = _is_sample(passage, match)
    for label in _LABEL.finditer(match["labels"]):
        word = label.group(1)
        at = match.start("labels") + label.start(1)
        span = (at, at + len(word))
        if word == "model_name":
            text = "the label is called model"
            notes.say(passage, "metric-label", span, text, "Write model", [(*span, "model")])
        elif word == "reason" and base != "nv_inference_request_failure":
            notes.say(passage, "metric-label", span, "only nv_inference_request_failure has the label reason")
        elif word == "quantile" and METRICS[base] != "summary":
            notes.say(passage, "metric-label", span, f"{base} is a {METRICS[base]}: it has no label quantile")
        elif word == "le" and METRICS[base] != "histogram" and name == base:
            notes.say(passage, "metric-label", span, f"{base} is a {METRICS[base]}: it has no label le")
        elif sample and word not in _OWN_LABELS and not word.startswith("_"):
            notes.say(passage, "metric-label", span, f"Triton gives {base} no label {word}")
