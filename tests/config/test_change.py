"""The class of a change: what has to happen to a model that serves, here and in Triton."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.config import ConfigDocument, change_class


def message(text: str) -> Any:
    return ConfigDocument.parse(text.encode()).message


OLD = 'name: "m" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 100 } instance_group { count: 1 }'


@pytest.mark.parametrize(
    ("new", "options", "kind", "triton"),
    [
        (OLD, {}, "none", "do nothing"),
        (OLD.replace("100", "200"), {}, "live", "load the model again in full"),
        (OLD.replace("count: 1", "count: 2"), {}, "instances", "in place"),
        (
            OLD.replace("count: 1", "count: 2").replace("100", "0"),
            {},
            "instances",
            "in full because of dynamic_batching",
        ),
        (OLD.replace("size: 8", "size: 16"), {}, "reload", "in full"),
        (OLD.replace("size: 8", "size: 16"), {"backend_reads_max_batch_size": False}, "live", "in full"),
        (OLD.replace("size: 8", "size: 0"), {"backend_reads_max_batch_size": False}, "reload", "in full"),
        (OLD + " response_cache { enable: true }", {}, "live", "in full"),
        (OLD + ' parameters { key: "k" value { string_value: "v" } }', {}, "reload", "in full"),
        ('name: "m" max_batch_size: 8 instance_group { count: 1 }', {}, "live", "in full"),
        ('name: "m" max_batch_size: 8 sequence_batching { } instance_group { count: 1 }', {}, "reload", "in full"),
        (OLD + " version_policy { all { } }", {}, "instances", "in place"),
    ],
)
def test_classes_of_change(new: str, options: dict[str, bool], kind: str, triton: str) -> None:
    change = change_class(message(OLD), message(new), **options)
    assert change.kind == str(change) == kind
    assert triton in change.triton
    assert bool(change.reasons) == (kind != "none")
    assert all(path.split(".")[0].split("[")[0] in new + OLD for path in change.paths)
