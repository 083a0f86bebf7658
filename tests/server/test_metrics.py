"""The metrics page, read by Prometheus' own parser."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from workbench import telemetry
from workbench.server import RunningServer
from workbench.server.metrics import exposition
from workbench.telemetry import GpuSample


def page(server: RunningServer) -> tuple[str, str]:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(server: RunningServer) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        # the parser gives counters the suffix that OpenMetrics wants and Triton's names do not have
        (sample.name.removesuffix("_total"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(server)[1])
        for sample in family.samples
    }


def test_the_page_is_prometheus_text_with_tritons_names(server: RunningServer) -> None:
    kind, text = page(server)
    assert kind.startswith("text/plain; version=0.0.4")
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    for name in (
        "nv_inference_request_success", "nv_inference_request_failure", "nv_inference_count",
        "nv_inference_exec_count", "nv_inference_request_duration_us", "nv_inference_queue_duration_us",
        "nv_inference_compute_input_duration_us", "nv_inference_compute_infer_duration_us",
        "nv_inference_compute_output_duration_us",
    ):  # fmt: skip
        assert families[name] == "counter"
    for name in (
        "nv_inference_pending_request_count", "nv_model_load_duration_secs", "nv_cpu_utilization",
        "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes",
    ):  # fmt: skip
        assert families[name] == "gauge"
    assert 'nv_inference_count{model="echo",version="1"}' in text


def test_counters_follow_the_requests(server: RunningServer, http: Callable[..., Any]) -> None:
    labels = (("model", "echo"), ("version", "1"))
    before = samples(server)
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [3, 4], "data": [0] * 12}]}
    for _ in range(2):
        assert http(server, "POST", "/v2/models/echo/infer", body).status == 200
    after = samples(server)

    def grew(name: str) -> float:
        return after[(name, labels)] - before[(name, labels)]

    assert grew("nv_inference_request_success") == 2
    assert grew("nv_inference_count") == 6
    assert grew("nv_inference_exec_count") == 2
    assert grew("nv_inference_request_duration_us") > 0
    assert after[("nv_inference_pending_request_count", labels)] == 0
    assert after[("nv_model_load_duration_secs", labels)] > 0


def test_all_four_failure_reasons_are_there_from_the_start(server: RunningServer) -> None:
    found = samples(server)
    for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
        assert found[("nv_inference_request_failure", (("model", "texts"), ("reason", reason), ("version", "1")))] == 0


def test_only_get_metrics_is_answered(server: RunningServer) -> None:
    import http.client

    address = server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    for method, path, status in (("GET", "/other", 404), ("POST", "/metrics", 405), ("GET", "/metrics", 200)):
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request(method, path)
        assert connection.getresponse().status == status
        connection.close()


def test_gpus_have_tritons_metrics(server: RunningServer) -> None:
    gpu = GpuSample(
        index=0, name="GPU", uuid="GPU-1", utilization=0.25, memory_used_bytes=2**30, memory_total_bytes=2**34,
        power_watts=120.5, power_limit_watts=None, energy_joules=7.0, temperature_c=None, clock_mhz=None,
        process_bytes={},
    )  # fmt: skip
    text = exposition(server.engine, replace(telemetry.sample(), gpus=(gpu,)))
    assert 'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25\n' in text
    assert 'nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1073741824\n' in text
    assert 'nv_gpu_power_usage{gpu_uuid="GPU-1"} 120.5\n' in text
    assert 'nv_energy_consumption{gpu_uuid="GPU-1"} 7\n' in text
    assert "nv_gpu_power_limit{" not in text, "what a device does not tell is left out"


def test_a_model_s_own_metrics_are_on_the_page_and_leave_it(server: RunningServer) -> None:
    metrics = server.engine.custom_metrics
    gauge = metrics.family("queue_depth", 'Depth of "it"\n, a\\b', "gauge")
    metrics.set(metrics.metric(gauge, '{"where": "a\\"b\\\\c\\nd"}', ()), 2.5)
    histogram = metrics.family("took_seconds", "Took", "histogram")
    number = metrics.metric(histogram, "null", (0.1, 1))
    for value in (0.05, 0.1, 5):
        metrics.observe(number, value)
    own = metrics.family("nv_inference_count", "added to", "counter")
    metrics.increment(metrics.metric(own, '{"model": "outside"}', ()), 3)
    found = samples(server)
    assert found["queue_depth", (("where", 'a"b\\c\nd'),)] == 2.5
    assert found["took_seconds_count", ()] == 3
    assert found["took_seconds_sum", ()] == 5.15
    assert [found["took_seconds_bucket", (("le", bound),)] for bound in ("0.1", "1", "+Inf")] == [2, 2, 3]
    assert found["nv_inference_count", (("model", "outside"),)] == 3
    text = page(server)[1]
    assert text.count("# TYPE nv_inference_count ") == 1
    assert '# HELP queue_depth Depth of "it"\\n, a\\\\b\n' in text
    for family in (gauge, histogram, own):
        metrics.delete_family(family)
    assert not {name for name, _ in samples(server)} & {"queue_depth", "took_seconds_count"}
