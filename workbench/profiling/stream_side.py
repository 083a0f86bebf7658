"""The responses of a load that streams: time to the first, time between one and the next, how many and how fast."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.profiling.client_side import counted_requests
from workbench.profiling.load import Load
from workbench.profiling.samples import Samples


@dataclass(frozen=True, slots=True)
class StreamSide:
    """What the stamps of the responses say; times in milliseconds, in the order in which their responses came.

    ``first_ms`` has one entry for each answered request that got a response, ``between_ms`` one for each response that
    followed another of the same request. ``per_request`` is the mean number of responses of an answered request,
    ``per_second`` how many came in the window, whatever became of their requests.
    """

    first_ms: NDArray[np.float64]
    between_ms: NDArray[np.float64]
    per_request: float
    per_second: float


def stream_side(samples: Samples, load: Load) -> StreamSide:
    """Evaluates the responses of one load point.

    The requests are those whose latency counts (``client_side``). As latency does, the time to the first response runs
    from when the request was scheduled; in a closed loop that is when it was sent.
    """
    begin, end = samples.window
    # Responses of many requests come interleaved: brought together by request, each request's in the order of arrival.
    order = np.argsort(samples.response_of, kind="stable")
    of, at = samples.response_of[order], samples.response_at[order]
    chosen = counted_requests(samples, load) & samples.ok
    kept = chosen[of]
    of, at = of[kept], at[kept]
    follows = np.zeros(len(of), np.bool_)
    follows[1:] = of[1:] == of[:-1]
    between = np.diff(at)[follows[1:]] / 1e6
    first = (at - samples.scheduled[of])[~follows] / 1e6
    inside = (samples.response_at >= begin) & (samples.response_at < end)
    requests = int(chosen.sum())
    return StreamSide(
        first_ms=first[np.argsort(at[~follows], kind="stable")],
        between_ms=between[np.argsort(at[follows], kind="stable")],
        per_request=len(of) / requests if requests else math.nan,
        per_second=int(inside.sum()) / max(samples.seconds, 1e-9),
    )
