from __future__ import annotations

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from workbench.scheduling import BatcherSettings, QueuePolicy, settings_from_config

CONFIG = """
max_batch_size: 16
instance_group [ { count: 2 kind: KIND_CPU }, { count: 3 gpus: [0, 1] kind: KIND_GPU } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  preserve_ordering: false
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 500 max_queue_size: 7 }
  priority_queue_policy { key: 1 value { allow_timeout_override: true default_timeout_microseconds: 9 } }
}
"""


def parsed(text: str) -> BatcherSettings:
    return settings_from_config(text_format.Parse(text, pb.ModelConfig()))


def test_every_field_of_dynamic_batching_is_read() -> None:
    assert parsed(CONFIG) == BatcherSettings(
        max_batch_size=16,
        preferred_batch_sizes=(4, 8),
        max_queue_delay_microseconds=100,
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=QueuePolicy("DELAY", 500, False, 7),
        priority_queue_policy={1: QueuePolicy("REJECT", 9, True, 0)},
        instances=8,
    )


def test_preserve_ordering_is_read() -> None:
    assert parsed("max_batch_size: 4 dynamic_batching { preserve_ordering: true }").preserve_ordering


def test_a_model_without_dynamic_batching_is_direct() -> None:
    settings = parsed("max_batch_size: 4")
    assert (settings.batching, settings.instances, settings.max_batch_size) == (False, 1, 4)


def test_an_empty_dynamic_batching_switches_batching_on() -> None:
    settings = parsed("max_batch_size: 4 dynamic_batching { }")
    assert (settings.batching, settings.effective_preferred_sizes) == (True, (4,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_batch_size": -1}, "max_batch_size"),
        ({"max_queue_delay_microseconds": -1}, "max_queue_delay_microseconds"),
        ({"priority_levels": 2}, "default_priority_level"),
        ({"priority_levels": 2, "default_priority_level": 3}, "default_priority_level"),
    ],
)
def test_nonsense_is_refused_before_it_reaches_a_queue(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatcherSettings(**settings)
