"""The parser answers as Triton's own parser does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.config import ConfigDocument, ParseError, to_text
from workbench.config.schema import pb
from workbench.errors import ConfigError

ANSWERS = json.loads(Path(__file__).with_name("parser_answers.json").read_text())
"""Configurations and what tritonserver 2.51 logged about each (see test_oracle.py)."""


def errors_of(data: bytes) -> list[str]:
    try:
        ConfigDocument.parse(data)
    except ParseError as error:
        return [str(fault) for fault in error.faults]
    return []


def test_parses_to_the_reference_message(parsed_case: Any) -> None:
    expected = json_format.ParseDict(parsed_case.reference, pb().ModelConfig())
    assert ConfigDocument.parse(parsed_case.data).message == expected


def test_errors_are_those_of_the_index(refused_case: Any) -> None:
    assert errors_of(refused_case.data) == list(refused_case.errors)


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: row["config"][:40])
def test_errors_are_those_of_tritonserver(row: dict[str, Any]) -> None:
    data = row["config"].encode("latin-1")
    assert errors_of(data) == row["errors"] or row["errors"] == []


def test_error_says_where_and_marks_the_token() -> None:
    data = b'name: "m"\n\tmax_batch_size: MAX\n'
    with pytest.raises(ParseError) as caught:
        ConfigDocument.parse(data, "model/config.pbtxt")
    error = caught.value
    assert (error.message, error.line, error.column) == ("Expected integer, got: MAX", 2, 25)  # a tab counts to 8
    assert "model/config.pbtxt:2:25" in str(error)
    assert data[error.faults[0].start : error.faults[0].end] == b"MAX"


def test_an_unknown_enum_is_said_behind_the_value_and_marked_at_it() -> None:
    data = b"input { data_type: TYPE_BYTES\n}"
    with pytest.raises(ParseError) as caught:
        ConfigDocument.parse(data)
    fault = caught.value.faults[0]
    assert (fault.line, fault.column) == (2, 1)  # the C++ parser stands at the next token
    assert data[fault.start : fault.end] == b"TYPE_BYTES"


def test_bytes_that_are_not_utf8_are_fine_in_comments_and_refused_in_strings() -> None:
    assert ConfigDocument.parse(b'# \xff\xfe\nname: "m"').message.name == "m"
    with pytest.raises(ParseError, match="not UTF-8") as caught:
        ConfigDocument.parse(b'name: "m"\nbackend: "\xff"')
    assert (caught.value.line, caught.value.column) == (2, 10)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (r'name: "a\n\x41\101\"\u00e9"', 'a\nAA"é'),
        (r'name: "\U0001f600\ud83d\ude00"', "😀😀"),
        ("name: 'it' \"'s\" # c\n  ' two'", "it's two"),
    ],
)
def test_strings(text: str, name: str) -> None:
    assert ConfigDocument.parse(text.encode()).message.name == name


def test_message_is_a_copy() -> None:
    document = ConfigDocument.parse(b'name: "m"')
    document.message.name = "other"
    assert document.message.name == "m"


WORDS = (
    b"name input dims data_type dynamic_batching parameters max_batch_size string_value preferred_batch_size key value "
    b'TYPE_FP32 true inf : { } [ ] , ; < > - 1 0x 1e .5 "a" \'b \\ \x00 \xff'
).split(b" ")
FRAGMENTS = st.lists(st.sampled_from([*WORDS, b" ", b"\n", b"\t", b"#c\n"]), max_size=40).map(b"".join)


def refusal(data: bytes) -> ConfigError | None:
    try:
        ConfigDocument.parse(data)
    except ConfigError as error:
        return error
    return None


@given(st.one_of(st.binary(max_size=200), FRAGMENTS))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_a_message_or_a_config_error(data: bytes) -> None:
    error = refusal(data)
    if error is not None:
        assert error.line >= 1
        assert error.column >= 1
        return
    message = ConfigDocument.parse(data).message
    assert ConfigDocument.parse(to_text(message).encode()).message == message


@pytest.mark.parametrize(
    "data",
    [
        b"input { name: " * 20_000,
        b"{" * 100_000,
        b"[" * 100_000,
        b'name: "' + b"\\q" * 20_000,
        b"dims" * 50_000,
        b"# c" * 50_000,
        b"input { dims: [ " + b"1," * 50_000,
        b'name: "a"' + b' "b"' * 30_000,
        b"max_batch_size: " + b"9" * 100_000,
        b"\t" * 50_000 + b'name: "' + b"\\q" * 5_000,
    ],
    ids=lambda data: repr(data[:16]),
)
def test_large_and_deep_files_take_linear_time(data: bytes) -> None:
    started = time.process_time()
    error = refusal(data)
    assert time.process_time() - started < 5.0
    assert error is None or len(error.message) < 5_000


def test_importing_the_package_is_cheap() -> None:
    code = "import workbench.config, sys; print([m for m in ('grpc', 'numpy', 'google.protobuf') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
