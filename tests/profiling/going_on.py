"""Windows of so many requests that go on although nothing is answered for a while: nothing is due, or streams go on."""

from __future__ import annotations

import pytest

from workbench.profiling import Load
from workbench.profiling.samples import Samples

going_on = pytest.mark.parametrize(
    "load",
    [
        Load.open(1, "constant", requests=3, warmup_s=0),
        Load.closed(1, requests=1, warmup_s=0, streaming=True),
    ],
    ids=["sparse arrivals", "long streams"],
)


def shorten_silence(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the silence that ends a window shorter than the load's arrivals are apart, or its streams last."""
    monkeypatch.setattr("workbench.profiling.load._SILENCE_S", 0.5 if load.has_open else 0.8)


def assert_it_went_on(samples: Samples, load: Load) -> None:
    """The window has all that it was to have."""
    assert "fruitless" not in samples.extra
    begin, end = samples.window
    assert (samples.ok & (samples.done >= begin) & (samples.done < end)).sum() == load.requests
