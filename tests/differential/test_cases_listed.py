"""The differential cases are listed, and there are enough of them."""

from __future__ import annotations

from typing import Any

import pytest
import surface
from harness import check
from listing import NAMES, TABLE, table, topics


def test_the_table_of_cases_is_what_is_registered() -> None:
    assert TABLE.read_text() == table(), "python tests/differential/listing.py writes it anew"


def test_every_name_of_pb_utils_is_used_by_a_model() -> None:
    assert [name for name, models in surface.used().items() if not models] == []
    assert NAMES.read_text() == surface.table(), "python tests/differential/listing.py writes it anew"


def test_every_topic_has_eight_cases_at_least() -> None:
    found: list[Any] = topics()
    assert {topic.title: len(topic.cases) for topic in found if len(topic.cases) < 8} == {}
    prefixes = [topic.prefix for topic in found]
    assert len(set(prefixes)) == len(prefixes)


def test_a_difference_is_found_and_a_stale_one_too() -> None:
    check([("a", 1), ("b", 2)], [("a", 1), ("b", 2)], {})
    check([("a", 1), ("b", 2)], [("a", 1), ("b", 3)], {"b": "known"})
    with pytest.raises(AssertionError, match=r"b\n +Triton: +2"):
        check([("a", 1), ("b", 2)], [("a", 1), ("b", 3)], {})
    with pytest.raises(AssertionError, match="no longer different"):
        check([("a", 1), ("b", 2)], [("a", 1), ("b", 2)], {"b": "known"})
    with pytest.raises(AssertionError):
        check([("a", 1)], [("b", 1)], {})
