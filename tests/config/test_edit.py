# ruff: noqa: E501 (tables of files before and after an edit)
"""Edits leave every byte alone that they are not about."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.config import ConfigDocument, Edit, edits_between, parse_edit
from workbench.config.schema import FieldType, root
from workbench.config.syntax import MessageNode, ScalarNode, map_key
from workbench.errors import ConfigError


def document(text: str) -> ConfigDocument:
    return ConfigDocument.parse(text.encode())


def edited(text: str, *edits: str | Edit) -> str:
    current = document(text)
    for each in edits:
        current = current.edit([parse_edit(each) if isinstance(each, str) else each])
    return current.data.decode()


def scalars(message: MessageNode, prefix: str = "") -> Iterator[tuple[str, FieldType, ScalarNode]]:
    """Every scalar value that is written in a file, with its path."""
    counts: dict[str, int] = {}
    for field in message.fields:
        for item in field.items():
            path = f"{prefix}.{field.type.name}" if prefix else field.type.name
            index = counts.get(path, 0)
            counts[path] = index + 1
            if field.type.is_map:
                assert isinstance(item, MessageNode)
                key = map_key(item)
                path += f"[{json.dumps(key.decode() if isinstance(key, bytes) else str(key))}]"
                for value in item.named("value"):
                    if isinstance(value.value, ScalarNode):
                        yield path, value.type, value.value
                    elif isinstance(value.value, MessageNode):
                        yield from scalars(value.value, path)
                continue
            if field.type.repeated:
                path += f"[{index}]"
            if isinstance(item, ScalarNode):
                yield path, field.type, item
            else:
                yield from scalars(item, path)


def another(kind: FieldType, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode() + "x'\"é\n"
    if isinstance(value, bool):
        return not value
    if kind.enum is not None:
        return next(name for name in kind.enum.numbers if name != value)
    if isinstance(value, float):
        return 0.25 if value != 0.25 else 0.5
    return value - 1 if value > 0 else value + 1


def test_one_value_edits_change_only_the_values_bytes(parsed_case: Any) -> None:
    before = ConfigDocument.parse(parsed_case.data)
    for path, kind, node in scalars(before.tree):
        same = node.value.decode() if isinstance(node.value, bytes) else node.value
        assert before.edit([Edit(path, "set", same)]).data == parsed_case.data, path
        after = before.edit([Edit(path, "set", another(kind, node.value))])
        tail = len(parsed_case.data) - node.end
        assert after.data[: node.start] == parsed_case.data[: node.start], path
        assert after.data[len(after.data) - tail :] == parsed_case.data[node.end :], path
        assert [edit.path for edit in edits_between(before.message, after.message)] == [path]
        back = after.edit([Edit(path, "set", same)])
        assert back.message == before.message, path


BASE = """# head
name: "m"
platform: "onnxruntime_onnx"  # why

# the inputs
input [
  {
    name: "A"
    data_type: TYPE_FP32
    dims: [ 1, 2 ]
  }
]
output [ { name: "B" data_type: TYPE_FP32 dims: 1 dims: 2 } ]
"""


def test_new_fields_go_where_a_person_would_put_them() -> None:
    text = edited(
        BASE,
        "max_batch_size=8",
        "dynamic_batching.max_queue_delay_microseconds=100",
        "dynamic_batching.preferred_batch_size=[4, 8]",
        "instance_group[0].count=2",
        'parameters["threads"].string_value=4',
    )
    assert text.startswith(
        '# head\nname: "m"\nplatform: "onnxruntime_onnx"  # why\nmax_batch_size: 8\n\n# the inputs\ninput ['
    )
    assert text.endswith(
        """output [ { name: "B" data_type: TYPE_FP32 dims: 1 dims: 2 } ]
instance_group [
  {
    count: 2
  }
]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
}
parameters {
  key: "threads"
  value { string_value: "4" }
}
"""
    )


def test_blocks_keep_their_distance() -> None:
    spaced = "name: 'm'\n\ninput [\n  { name: 'A' }\n]\n\n# what comes out\noutput [\n  { name: 'B' }\n]\n"
    assert edited(spaced, "dynamic_batching.priority_levels=2", "max_batch_size=4") == (
        spaced.replace("'m'\n", "'m'\nmax_batch_size: 4\n") + "\ndynamic_batching {\n  priority_levels: 2\n}\n"
    )


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ("max_batch_size: 0x10\n", "max_batch_size=16", "max_batch_size: 0x10\n"),
        ("max_batch_size: 1#c\n", "max_batch_size=2", "max_batch_size: 2#c\n"),
        ("name: 'a' # c\n", "name=b", "name: 'b' # c\n"),
        ("name: 'a'  # c\n  \"b\" # d\n", "name=c", "name: 'c'  # c\n   # d\n"),
        ("response_cache { enable: False }", "response_cache.enable=true", "response_cache { enable: True }"),
        ("response_cache { enable: t }", "response_cache.enable=false", "response_cache { enable: f }"),
        ("response_cache { enable: 1 }", "response_cache.enable=false", "response_cache { enable: 0 }"),
        ("instance_group { kind: 2 }", "instance_group[0].kind=KIND_GPU", "instance_group { kind: 1 }"),
        ("instance_group { kind: KIND_CPU }", "instance_group[0].kind=1", "instance_group { kind: KIND_GPU }"),
        ("input { dims: [1, 2] }", "input[0].dims=[1, 3]", "input { dims: [1, 3] }"),
        ("input { dims: [1, 2] }", "input[0].dims=[2]", "input { dims: [2] }"),
        ("input { dims: [1, 2] }", "input[0].dims=[1, 2, 3]", "input { dims: [1, 2, 3] }"),
        ("input { dims: 1 dims: 2 }", "input[0].dims=[1, 2, 3]", "input { dims: 1 dims: 2 dims: 3 }"),
        ("input { dims: 1 dims: 2 }", "input[0].dims[0]=7", "input { dims: 7 dims: 2 }"),
        ("input { dims:1, dims:2 }", "input[0].dims=[2]", "input { dims:2 }"),
        ("dynamic_batching { }\n", "dynamic_batching.priority_levels=2", "dynamic_batching { priority_levels: 2 }\n"),
        ("dynamic_batching {\n}\n", "dynamic_batching.priority_levels=2", "dynamic_batching {\n  priority_levels: 2\n}\n"),
        ("dynamic_batching { }", "dynamic_batching.priority_levels=0", "dynamic_batching { }"),
        ("", "dynamic_batching.priority_levels=0", "dynamic_batching {\n  priority_levels: 0\n}\n"),
        ('name:"m"backend:"b"', "max_batch_size=4", 'name:"m"backend:"b"\nmax_batch_size:4'),
        ('name: "m",\nbackend: "b",\n', "max_batch_size=4", 'name: "m",\nbackend: "b",\nmax_batch_size: 4,\n'),
        ('backend: "b"\r\n', "max_batch_size=4", 'backend: "b"\r\nmax_batch_size: 4\r\n'),
        ("a", "name=b", None),
        ('parameters { key: "a" value { } }', 'parameters["a"].string_value=1', 'parameters { key: "a" value { string_value: "1" } }'),
        ('parameters { key: "a" }', 'parameters["a"].string_value=1', 'parameters { key: "a" value { string_value: "1" } }'),
        ("input [ ]\n", 'input[0]={"name": "A"}', 'input [ { name: "A" } ]\n'),
        ("dynamic_batching {\n\tpriority_levels: 2\n}\n", "dynamic_batching.default_priority_level=1", "dynamic_batching {\n\tpriority_levels: 2\n\tdefault_priority_level: 1\n}\n"),
        ("optimization: {\n    graph: { level: 1 }\n}\n", "optimization.cuda.graphs=true", "optimization: {\n    graph: { level: 1 }\n    cuda: {\n        graphs: true\n    }\n}\n"),
    ],
)  # fmt: skip
def test_set(before: str, edit: str, after: str | None) -> None:
    if after is None:
        with pytest.raises(ConfigError):
            edited(before, edit)
    else:
        assert edited(before, edit) == after


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        ('name: "m"\nmax_batch_size: 4  # four\nbackend: "b"\n', "max_batch_size", 'name: "m"\nbackend: "b"\n'),
        ('name: "m" max_batch_size: 4 backend: "b"\n', "max_batch_size", 'name: "m" backend: "b"\n'),
        ('name: "m" max_batch_size: 4\n', "max_batch_size", 'name: "m"\n'),
        ('name: "m"\n', "max_batch_size", 'name: "m"\n'),
        ('name: "m"\n', "dynamic_batching.priority_levels", 'name: "m"\n'),
        ('name: "m"\ndynamic_batching {\n  # c\n}\n', "dynamic_batching", 'name: "m"\n'),
        ("input { dims: [1, 2, 3] }", "input[0].dims[1]", "input { dims: [1, 3] }"),
        ("input { dims: [1, 2, 3] }", "input[0].dims[2]", "input { dims: [1, 2] }"),
        ("input { dims: [1] }", "input[0].dims[0]", "input { }"),
        ("input [\n  { name: 'A' },  # a\n  { name: 'B' }  # b\n]\n", "input[0]", "input [\n  { name: 'B' }  # b\n]\n"),
        ("input [\n  { name: 'A' },  # a\n  { name: 'B' }  # b\n]\n", "input[1]", "input [\n  { name: 'A' }  # a\n]\n"),
        ("parameters { key: 'a' }\nparameters { key: 'b' }\nparameters { key: 'a' }\n", 'parameters["a"]', "parameters { key: 'b' }\n"),
        ("input { dims: 1 dims: 2 }", "input[0].dims", "input { }"),
    ],
)  # fmt: skip
def test_remove_tidies_up(before: str, path: str, after: str) -> None:
    assert edited(before, Edit(path, "remove")) == after


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        ("input { dims: [1, 2] }", "input[0].dims[0]", 9, "input { dims: [9, 1, 2] }"),
        ("input { dims: [1, 2] }", "input[0].dims", 9, "input { dims: [1, 2, 9] }"),
        ("input { dims: 1 dims: 2 }", "input[0].dims[1]", 9, "input { dims: 1 dims: 9 dims: 2 }"),
        ("input [\n  {\n    name: 'A'\n  }  # a\n]\n", "input", {"name": "B"}, "input [\n  {\n    name: 'A'\n  },  # a\n  {\n    name: 'B'\n  }\n]\n"),
        ("input {\n  name: 'A'\n}\n", "input[0]", {"name": "B"}, "input {\n  name: 'B'\n}\ninput {\n  name: 'A'\n}\n"),
    ],
)  # fmt: skip
def test_insert(before: str, path: str, value: Any, after: str) -> None:
    assert edited(before, Edit(path, "insert", value)) == after


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (Edit("max_batchsize", "set", 1), "no field named"),
        (Edit("input[3].name", "set", "x"), "no index 3"),
        (Edit("input[3]", "remove"), "no index 3"),
        (Edit("input.name", "set", "x"), "name one element, as in input[0]"),
        (Edit("parameters.KEY.string_value", "set", "x"), 'name one element, as in parameters["KEY"]'),
        (Edit("name.x", "set", "x"), "has no fields"),
        (Edit("max_batch_size", "set", "x"), "must be an integer"),
        (Edit("max_batch_size", "insert", 1), "not a list"),
        (Edit('parameters["a"', "set", 1), "']'"),
        (Edit("", "set", 1), "field name is expected"),
        (Edit("sequence_batching", "set", {}), "another member of oneof"),
    ],
)
def test_edits_that_do_not_fit_are_refused_in_words(edit: Edit, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        document("dynamic_batching { }").edit([edit])
    assert text in caught.value.message
    assert caught.value.where == edit.path


@pytest.mark.parametrize(
    ("wrong", "instead"),
    [
        ("instance_group=2", "instance_group[0].count=2"),
        ("instance_group=KIND_GPU", 'instance_group[0].kind="KIND_GPU"'),
        ("instance_group[0]=2", "instance_group[0].count=2"),
        ("instance_group=[2]", "instance_group[0].count=2"),
        ('instance_group={"count": 2}', 'instance_group=[{"count": 2}]'),
        ("dynamic_batching=true", "dynamic_batching={} sets it with all its defaults"),
        ("dynamic_batching=100", "dynamic_batching.max_queue_delay_microseconds=100"),
        ("dynamic_batching.preferred_batch_size=4", "dynamic_batching.preferred_batch_size=[4]"),
        ("response_cache=true", "response_cache.enable=true"),
        ("version_policy=2", "version_policy.latest.num_versions=2"),
        ("parameters=5", 'parameters["KEY"].string_value="5"'),
        ('parameters["k"]=5', 'parameters["k"].string_value="5"'),
        ("cc_model_filenames=model.onnx", 'cc_model_filenames["KEY"]="model.onnx"'),
        ("input=FP32", 'input[0].name="FP32"'),
        ("input[0].dims=3", "input[0].dims=[3]"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_what_to_write(wrong: str, instead: str) -> None:
    with pytest.raises(ConfigError) as caught:
        edited("instance_group { }\ninput { }\n", wrong)
    assert instead in caught.value.hint


def refusal(edit: Edit) -> ConfigError | None:
    """Why an empty configuration does not take an edit."""
    try:
        document("").edit([edit])
    except ConfigError as error:
        return error
    return None


def places_of_messages(kind: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    """The paths of all fields of the schema that are no plain values, and of one element of each."""
    for field in kind.fields.values():
        if field.kind != "message" and not field.repeated:
            continue
        here = f"{path}.{field.name}" if path else field.name
        yield here
        inner = field.body.fields["value"] if field.is_map else field
        if field.is_map:
            here += '["7"]'
        elif field.repeated:
            here += "[0]"
        if inner.kind == "message" and depth < 4:
            yield here
            yield from places_of_messages(inner.body, here, depth + 1)


@pytest.mark.parametrize("value", [True, 2, 2.5, "x", "KIND_CPU", [[1]], None], ids=str)
def test_whatever_is_proposed_can_be_written(value: Any) -> None:
    tried = 0
    for path in places_of_messages(root()):
        refused = refusal(Edit(path, "set", value))
        # a list of plain values of which one is wrong says so itself
        if refused is None or not re.search("must be an (object|array)", refused.message):
            continue
        hint = refused.hint
        found = re.search(r"(?:such as |it is a list: |^)(\S+?=(?:\".*\"|[^;\s]+)(?: sets it)?)", hint)
        assert found is not None, (path, hint)
        proposed = found.group(1).removesuffix(" sets it")
        assert proposed.startswith(re.sub(r"\[\"7\"\]$", "", path)), (path, hint)
        edited("", proposed.replace('"KEY"', '"7"'))
        tried += 1
    assert tried > 40


def test_the_scheduler_can_be_switched_with_a_removal() -> None:
    edits = [Edit("dynamic_batching", "remove"), Edit("sequence_batching.oldest.max_candidate_sequences", "set", 4)]
    after = document("max_batch_size: 4\ndynamic_batching { }\n").edit(edits)
    assert after.message.WhichOneof("scheduling_choice") == "sequence_batching"


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("instance_group[0].count=2", Edit("instance_group[0].count", "set", 2)),
        ('parameters["a=b"].string_value = "x=y"', Edit('parameters["a=b"].string_value', "set", "x=y")),
        ("name=plain text", Edit("name", "set", "plain text")),
        ("dynamic_batching.preferred_batch_size=[1,2]", Edit("dynamic_batching.preferred_batch_size", "set", [1, 2])),
    ],
)
def test_parse_edit(text: str, edit: Edit) -> None:
    assert parse_edit(text) == edit
    assert Edit.from_json(json.loads(json.dumps(edit.to_json()))) == edit


@pytest.mark.parametrize("text", ["name", "nome=1", "=1", ""])
def test_parse_edit_refuses(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_edit(text)


def test_diff_and_locate() -> None:
    before = document(BASE)
    after = before.edit([Edit("input[0].dims[1]", "set", 5)])
    lines = before.diff(after).splitlines()
    assert [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")] == [
        "-    dims: [ 1, 2 ]",
        "+    dims: [ 1, 5 ]",
    ]
    assert before.diff(before) == ""
    span = after.locate("input[0].dims[1]")
    assert span is not None
    assert (span.line, span.column, after.data[span.start : span.end]) == (10, 16, b"5")
    assert after.locate("max_batch_size") is None
    near = after.locate("input[0].reshape.shape", nearest=True)
    assert near is not None
    assert near.line == 7


def test_edits_between_lead_from_any_case_to_any_other(shared: Any) -> None:
    files = sorted((shared / "cases" / "parsed").glob("*.json"))
    texts = [(shared / "cases" / "configs" / f"{path.stem}.pbtxt").read_bytes() for path in files]
    documents = [ConfigDocument.parse(text) for text in texts]
    rng = random.Random(7)
    for _ in range(120):
        one, other = rng.choice(documents), rng.choice(documents)
        target = other.message
        assert one.edit(edits_between(one.message, target)).message == target


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=6),
        "max_batch_size": st.integers(-1, 9),
        "input": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["A", "B", "'q\""])},
                optional={"dims": st.lists(st.integers(-1, 4), max_size=3), "data_type": st.sampled_from(["TYPE_FP32", "TYPE_STRING"])},
            ),
            max_size=3,
        ),
        "instance_group": st.lists(st.fixed_dictionaries({}, optional={"count": st.integers(0, 3), "gpus": st.lists(st.integers(0, 3), max_size=2)}), max_size=2),
        "dynamic_batching": st.fixed_dictionaries(
            {},
            optional={
                "preferred_batch_size": st.lists(st.integers(1, 9), max_size=4),
                "max_queue_delay_microseconds": st.integers(0, 3),
                "priority_queue_policy": st.dictionaries(st.sampled_from(["1", "2"]), st.fixed_dictionaries({}, optional={"max_queue_size": st.integers(0, 2)})),
            },
        ),
        "parameters": st.dictionaries(st.sampled_from(["a", "b", "", 'q"\\']), st.fixed_dictionaries({}, optional={"string_value": st.text(max_size=3)}), max_size=3),
        "metric_tags": st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=2)),
    },
)  # fmt: skip

LAYOUTS = [
    "",
    "# only a comment",
    'name: "m"\n\ninput [ { name: "A" dims: [ 1 ] } ]\n',
    'name:"m"max_batch_size:4 input{name:"A"dims:1 dims:2}parameters{key:"a"value{string_value:"x"}}',
    "name: 'm',\r\nmax_batch_size: 3,\r\ninput: [\r\n\t{\r\n\t\tname: 'A',\r\n\t\tdims: [-1, 2],\r\n\t},\r\n\t{ name: 'B' }\r\n],\r\n".replace(
        ",\r\n\t},", "\r\n\t},"
    ),
    "dynamic_batching <\n  preferred_batch_size: 4 # four\n  preferred_batch_size: 8\n>\nparameters [\n  { key: 'a' },\n  { key: 'b' value: { string_value: 'y' } }\n]\n",
    "metric_tags { key: 'a' value: 'b' } ; metric_tags { key: 'a' value: 'c' }\ninstance_group [ ]\ninstance_group { count: 2 # two\n}",
]


@given(st.sampled_from(LAYOUTS), VALUES, VALUES)
@settings(max_examples=120, deadline=None)
def test_any_target_is_reached_in_any_layout(layout: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    from workbench.config import from_json

    current = ConfigDocument.parse(layout.encode())
    for value in (first, second):
        target = from_json(value)
        comments = current.data.count(b"# ")
        current = current.edit(edits_between(current.message, target))
        assert current.message == target
        assert current.data.count(b"# ") <= comments
        assert current.edit(edits_between(current.message, target)).data == current.data


def test_a_key_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="lone surrogate"):
        edited('name: "m"', Edit('parameters["\\ud800"].string_value', "set", "v"))
