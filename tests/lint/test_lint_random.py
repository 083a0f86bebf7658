"""Random slips in a configuration: the linter never falls over, and its fixes come to an end and break nothing."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from lint_cases import BATCHING, PAIR, PY, TWO, WARM, ensemble, write

import workbench as wb
from workbench.config import ConfigDocument, fix_all, lint_config
from workbench.errors import ConfigError

MODEL = (
    BATCHING
    + WARM
    + 'instance_group [ { count: 2 kind: KIND_CPU rate_limiter { resources [ { name: "R" count: 1 } ] } } ]\n'
    + "dynamic_batching {\n  preferred_batch_size: [ 2, 4 ]\n  max_queue_delay_microseconds: 100\n"
    + "  priority_levels: 2\n  default_priority_level: 1\n"
    + "  priority_queue_policy { key: 1 value { timeout_action: DELAY } }\n}\n"
    + 'parameters { key: "k" value { string_value: "v" } }\nversion_policy { specific { versions: [ 1 ] } }\n'
)
TOKENS = re.findall(r'"[^"]*"|\w+|\s+|.', MODEL)
SLIPS = st.lists(
    st.tuples(
        st.integers(0, len(TOKENS) - 1),
        st.sampled_from(
            ["", "=", '"', "{", "}", "[", "]", ",", "8", "-1", "true", "yes", "$X", "TYPE_BYTES", "null", "<"]
        ),
    ),
    min_size=1,
    max_size=4,
)


def spoilt(slips: list[tuple[int, str]]) -> bytes:
    """The model's configuration with some of its tokens replaced."""
    tokens = list(TOKENS)
    for index, token in slips:
        tokens[index] = token
    return "".join(tokens).encode()


@given(SLIPS)
@settings(max_examples=150, deadline=None)
def test_slips_are_found_and_fixes_come_to_an_end(slips: list[tuple[int, str]]) -> None:
    data = spoilt(slips)
    mended, left = fix_all(data)
    assert [each.to_json() for each in lint_config(mended)] == [each.to_json() for each in left]
    assert len(mended) < 3 * len(data) + 100
    assert fix_all(mended)[0] == mended
    try:
        ConfigDocument.parse(data)
    except ConfigError:
        return
    ConfigDocument.parse(mended)


@given(SLIPS)
@settings(max_examples=25, deadline=None)
def test_a_repository_with_slips_is_always_judged(slips: list[tuple[int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = ensemble(TWO) | PAIR | {"m/config.pbtxt": spoilt(slips), "m/1/model.py": PY}
        root = write(Path(folder), files)
        wb.lint(root)
        after = wb.lint(root, fix=True)
        assert [(each.path, each.findings) for each in wb.lint(root)] == [(each.path, each.findings) for each in after]
