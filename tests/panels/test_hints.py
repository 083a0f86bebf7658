from __future__ import annotations

from typing import Any

import pytest

from workbench.panels.hints import Observed, hints

BATCHED = {"max_batch_size": 8, "dynamic_batching": {"max_queue_delay_microseconds": "500"}}


def seen(counts: dict[tuple[int, str], int], **other: Any) -> Observed:
    values: dict[str, Any] = {
        "queue_ms": 1.0, "compute_ms": 2.0, "failed_s": 0.0, "max_in_flight": 4, "config": BATCHED, **other
    }  # fmt: skip
    return Observed(counts=counts, **values)


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        (seen({}), "No batch was executed"),
        (seen({(1, "delay"): 9}, max_in_flight=1), "in flight is 1: batching cannot happen"),
        (seen({(1, "direct"): 9}, config={"max_batch_size": 8}), "dynamic_batching is not set"),
        (seen({(1, "direct"): 9}, config={"max_batch_size": 0}), "max_batch_size is 0"),
        (seen({(1, "full"): 9}, config={**BATCHED, "max_batch_size": 1}), "max_batch_size is 1"),
        (seen({(8, "full"): 9, (2, "delay"): 1}), "90% of the batches are full (8 rows)"),
        (seen({(3, "delay"): 9}), "(500) was over, with 3.00 rows on average"),
        (seen({(4, "preferred"): 9}, queue_ms=30.0), "Requests wait 30.00 ms for 2.00 ms of compute"),
        (seen({(2, "shapes"): 5, (4, "full"): 5}), "5 requests could not join: shapes differ"),
        (seen({(2, "inputs"): 1, (4, "full"): 5}), "1 request could not join: inputs differ"),
        (seen({(4, "preferred"): 9}, failed_s=2.5), "2.5 requests/s fail"),
        (seen({(4, "preferred"): 9}), "nothing stands out"),
    ],
)
def test_each_finding_has_its_sentence(observed: Observed, words: str) -> None:
    assert any(words in line for line in hints(observed)), hints(observed)


def test_waiting_for_an_instance_is_not_called_a_lack_of_load() -> None:
    said = hints(seen({(3, "delay"): 9}, queue_ms=25.0))
    assert [line for line in said if "instances are the bottleneck" in line] == said


def test_waiting_for_the_delay_is_not_called_waiting_for_an_instance() -> None:
    delayed = {"max_batch_size": 8, "dynamic_batching": {"max_queue_delay_microseconds": "20000"}}
    said = hints(seen({(3, "delay"): 9}, queue_ms=15.0, config=delayed))
    assert [line for line in said if "(20,000) was over" in line] == said


def test_a_model_that_is_not_batched_for_good_reason_is_not_told_to_turn_on_what_it_cannot_have() -> None:
    ensemble = seen({(1, "direct"): 3}, config={"max_batch_size": 8, "ensemble_scheduling": {}})
    assert not any("dynamic_batching" in line for line in hints(ensemble))
