"""Names of command line options: tritonserver's, perf_analyzer's, and those that trtexec lost.

Sources: the help of tritonserver 2.51 and the option table of its head (semantics: 2.73), perf_analyzer's option table,
and TensorRT's guide for moving trtexec from 8.x to 10.x.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def abbreviates(name: str, known: frozenset[str]) -> bool:
    """Whether a name is the beginning of just one option: ``getopt_long`` takes it for that."""
    return sum(1 for each in known if len(name) > 1 and each.startswith(name)) == 1


TRITONSERVER_BOOL = _names(
    """allow-client-shm allow-cpu-metrics allow-gpu-metrics allow-grpc allow-http allow-metrics allow-sagemaker
    allow-vertex-ai enable-peer-access exit-on-error grpc-keepalive-permit-without-calls grpc-use-ssl
    grpc-use-ssl-mutual log-error log-info log-warning model-namespacing reuse-grpc-port reuse-http-port
    strict-model-config strict-readiness"""
)
"""Options whose value is true or false."""

TRITONSERVER_NUMBER = _names(
    """buffer-manager-thread-count exit-timeout-secs grpc-infer-allocation-pool-size grpc-infer-thread-count
    grpc-http2-max-ping-strikes grpc-http2-max-pings-without-data grpc-http2-min-recv-ping-interval-without-data
    grpc-keepalive-time grpc-keepalive-timeout grpc-max-connection-age grpc-max-connection-age-grace
    grpc-max-response-pool-size grpc-port http-max-input-size http-port http-thread-count log-verbose
    metrics-port model-load-retry-count model-load-thread-count pinned-memory-pool-byte-size repository-poll-secs
    response-cache-byte-size sagemaker-port sagemaker-thread-count trace-count trace-log-frequency trace-rate
    vertex-ai-port vertex-ai-thread-count metrics-interval-ms"""
)
"""Options whose value is a number."""

TRITONSERVER = (
    TRITONSERVER_BOOL
    | TRITONSERVER_NUMBER
    | _names(
        """backend-config backend-directory cache-config cache-directory cuda-memory-pool-byte-size
    cuda-virtual-address-size disable-auto-complete-config grpc-address grpc-header-forward-pattern
    grpc-infer-response-compression-level grpc-restricted-protocol grpc-root-cert grpc-server-cert grpc-server-key help
    host-policy http-address http-header-forward-pattern http-restricted-api id load-model log-file log-format
    metrics-address metrics-config min-supported-compute-capability model-config-name model-control-mode
    model-load-gpu-limit model-repository model-store rate-limit rate-limit-resource repoagent-directory
    sagemaker-safe-port-range trace-config trace-file trace-level vertex-ai-default-model"""
    )
)
"""Every option of tritonserver."""

TRITONSERVER_CHOICES: dict[str, tuple[str, ...]] = {
    "model-control-mode": ("none", "poll", "explicit"),
    "rate-limit": ("off", "execution_count"),
    "log-format": ("default", "ISO8601"),
    "grpc-infer-response-compression-level": ("none", "low", "medium", "high"),
}
"""Options with a fixed set of values."""

TRITONSERVER_SINCE: dict[str, tuple[int, int]] = {"allow-client-shm": (26, 4)}
"""Options that older releases do not know (semantics 15.9)."""

TRITONSERVER_OLD: dict[str, str] = {
    "strict-model-config": "--disable-auto-complete-config",
    "response-cache-byte-size": "--cache-config=local,size=BYTES",
    "trace-file": "--trace-config=triton,file=FILE",
    "trace-level": "--trace-config=level=LEVEL",
    "trace-rate": "--trace-config=rate=N",
    "trace-count": "--trace-config=count=N",
    "trace-log-frequency": "--trace-config=triton,log-frequency=N",
}
"""Deprecated options and what replaces them."""

PERF_ANALYZER_FLAGS = _names(
    """streaming async sync binary-search ssl-grpc-use-ssl verbose-csv enable-mpi collect-metrics serial-sequences
    version fixed-schedule help v d a z h"""
)
"""Options of perf_analyzer without a value."""

PERF_ANALYZER = PERF_ANALYZER_FLAGS | _names(
    """max-threads sequence-length percentile data-directory shape measurement-interval concurrency-range
    latency-threshold stability-percentage max-trials input-data string-length string-data request-rate-range
    num-of-sequences request-distribution request-intervals shared-memory output-shared-memory-size service-kind
    model-signature-name grpc-compression-algorithm measurement-mode measurement-request-count
    triton-server-directory model-repository sequence-id-range ssl-grpc-root-certifications-file
    ssl-grpc-private-key-file ssl-grpc-certificate-chain-file ssl-https-verify-peer ssl-https-verify-host
    ssl-https-ca-certificates-file ssl-https-client-certificate-file ssl-https-client-certificate-type
    ssl-https-private-key-file ssl-https-private-key-type trace-level trace-rate trace-count log-frequency metrics-url
    metrics-interval sequence-length-variation bls-composing-models input-tensor-format output-tensor-format
    profile-export-file periodic-concurrency-range request-period request-parameter endpoint request-count
    warmup-request-count session-concurrency grpc-method c u m x b t p i H l r s f n"""
)
"""Every option of perf_analyzer."""

_IMPLICIT = "TensorRT 10 reads ONNX only, always with an explicit batch dimension"
TRTEXEC_REMOVED: dict[str, str] = {
    "workspace": "--memPoolSize=workspace:MIB",
    "buildOnly": "--skipInference",
    "minTiming": "--avgTiming",
    "maxBatch": _IMPLICIT,
    "batch": _IMPLICIT,
    "deploy": _IMPLICIT,
    "model": _IMPLICIT,
    "output": _IMPLICIT,
    "uff": _IMPLICIT,
    "uffInput": _IMPLICIT,
    "uffNHWC": _IMPLICIT,
}
"""Options that trtexec lost with TensorRT 10 (Triton 24.05 and later), and what to write instead."""
