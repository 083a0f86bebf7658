"""``MetricFamily`` and ``Metric`` of ``triton_python_backend_utils``: a model's own counters on ``/metrics``.

They live in the server; what is here has their numbers. Texts: python_backend (metric.cc, metric_family.cc), recorded
from release 24.10 (Triton 2.51).
"""

from __future__ import annotations

import json
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, Protocol

from workbench.backends._child.enums import MODULE, MetricKind
from workbench.backends._child.tensors import TritonModelException, arguments, incompatible

_CLEARED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class Asks(Protocol):
    """What a family needs of a model's runtime."""

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Asks the server and waits.

        Raises:
            TritonModelException: it refused.
        """

    def tell(self, operation: str, *arguments: Any) -> None:
        """Tells the server; no answer comes."""


class Drops:
    """Tells the server which families a model has let go.

    An object may be collected while its thread is in the middle of a message, so ``__del__`` only notes it; a thread
    of its own tells the server, or whoever asks for something about metrics next.
    """

    def __init__(self, runtime: Asks) -> None:
        self._runtime = runtime
        self._dropped: deque[int] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()  # its put may be called from a finalizer
        self._lock = threading.Lock()
        self._started = False

    def add(self, number: int) -> None:
        """Notes a family that is gone."""
        self._dropped.append(number)
        self._wake.put(True)

    def close(self) -> None:
        """Ends the thread: the server knows that the model is gone."""
        self._wake.put(False)

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Asks the server about metrics, after it has been told what is gone."""
        if not self._started:
            with self._lock:
                if not self._started:
                    threading.Thread(target=self._watch, name="workbench-metrics", daemon=True).start()
                    self._started = True
        self._flush()
        return self._runtime.ask(operation, *arguments)

    def _watch(self) -> None:
        while self._wake.get():
            self._flush()

    def _flush(self) -> None:
        if not self._dropped:
            return
        with self._lock:
            while self._dropped:
                self._runtime.tell("metric_family_delete", self._dropped.popleft())


class HasDrops(Protocol):
    """A model's runtime."""

    drops: Drops


class Metric:
    """A counter, gauge or histogram with its labels; made by ``MetricFamily.Metric``."""

    __module__ = MODULE
    __slots__ = ("__weakref__", "_cleared", "_drops", "_number")

    _number: int
    _drops: Drops
    _cleared: list[bool]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(f"{MODULE}.Metric: No constructor defined!")

    def increment(self, *args: Any, **kwargs: Any) -> None:
        """Adds to a counter (nothing negative) or a gauge.

        Raises:
            TritonModelException: the metric's kind cannot do that, or its family is gone.
        """
        self._change("increment", args, kwargs)

    def set(self, *args: Any, **kwargs: Any) -> None:
        """Sets a gauge.

        Raises:
            TritonModelException: the metric's kind cannot do that, or its family is gone.
        """
        self._change("set", args, kwargs)

    def observe(self, *args: Any, **kwargs: Any) -> None:
        """Adds an observation to a histogram.

        Raises:
            TritonModelException: the metric's kind cannot do that, or its family is gone.
        """
        self._change("observe", args, kwargs)

    def value(self, *args: Any, **kwargs: Any) -> float:
        """What a counter or gauge stands at.

        Raises:
            TritonModelException: the metric's kind cannot do that, or its family is gone.
        """
        if args or kwargs:
            raise incompatible("value", f"(self: {MODULE}.Metric) -> float", (self, *args), kwargs)
        return float(self._ask("get", "value", ()))

    def _change(self, name: str, args: Any, kwargs: Any) -> None:
        if kwargs or len(args) != 1 or not hasattr(args[0], "__float__"):
            raise incompatible(name, f"(self: {MODULE}.Metric, arg0: float) -> None", (self, *args), kwargs)
        self._ask(name, name, (float(args[0]),))

    def _ask(self, name: str, operation: str, arguments: Any) -> Any:
        try:
            if self._cleared[0]:
                raise TritonModelException(_CLEARED)
            return self._drops.ask(f"metric_{operation}", self._number, *arguments)
        except TritonModelException as error:
            raise TritonModelException(f"Failed to {name} metric value: {error}") from None


class MetricFamily:
    """Metrics of one name: ``MetricFamily(name, description, kind)``. They go when it goes."""

    __module__ = MODULE
    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM
    _runtime: HasDrops
    _number = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        signature = f"{MODULE}.MetricFamily(name: str, description: str, kind: {MODULE}.MetricKind)"
        names = {"name": ..., "description": ..., "kind": ...}
        name, text, kind = arguments("__init__", signature, names, args, kwargs).values()
        if not (isinstance(name, str) and isinstance(text, str) and isinstance(kind, MetricKind)):
            raise incompatible("__init__", signature, args, kwargs)
        self._kind = kind
        self._drops = self._runtime.drops
        self._cleared = [False]
        try:
            self._number = self._drops.ask("metric_family", name, text, kind.name.lower())
        except TritonModelException as error:
            raise TritonModelException(f"Error when creating MetricFamily: {error}") from None

    def Metric(self, labels: Any = None, buckets: Any = None) -> Any:
        """A metric of this family; ``buckets`` are a histogram's upper bounds, rising.

        Raises:
            TritonModelException: the labels or buckets are wrong.
        """
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        text = json.dumps(labels)
        histogram = self._kind is MetricKind.HISTOGRAM
        if buckets is None and histogram:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if buckets is not None and not histogram:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        metric = object.__new__(Metric)
        metric._drops = self._drops
        metric._cleared = self._cleared
        try:
            bounds = tuple([float(bound) for bound in buckets or ()])
        except (TypeError, ValueError):
            raise RuntimeError(
                "Unable to cast Python instance to C++ type (#define PYBIND11_DETAILED_ERROR_MESSAGES or compile in "
                "debug mode for details)"
            ) from None
        try:
            metric._number = self._drops.ask("metric", self._number, text, bounds)
        except TritonModelException as error:
            raise TritonModelException(f"Error when creating Metric: {error}") from None
        return metric

    def __del__(self) -> None:
        if self._number:
            self._cleared[0] = True
            self._drops.add(self._number)


def bind(runtime: HasDrops) -> type:
    """The ``MetricFamily`` of one model."""
    return type("MetricFamily", (MetricFamily,), {"_runtime": runtime, "__module__": MODULE})
