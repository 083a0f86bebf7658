"""The linter's rules: an explanation for each id."""

from __future__ import annotations

RULES: dict[str, str] = {
    # the file cannot be read
    "parse-error": "Triton's parser refuses the file; message, line and column are the parser's own.",
    "byte-order-mark": "The file begins with a UTF-8 byte order mark; Triton's parser takes it for a stray character.",
    "smart-quotes": "Typographic quotes, as a word processor makes them, are not quotes to Triton: use \" or '.",
    "cpp-comment": "A comment begins with #; // and /* */ are not comments in config.pbtxt.",
    "yaml-style": "The file looks like YAML. config.pbtxt is protobuf text: strings in quotes, lists as [ { ... } ].",
    "template-placeholder": "A template was not filled in: a value must stand where the placeholder is.",
    "unquoted-string": "A string value must stand in quotes.",
    "trailing-comma": "A list must not end with a comma.",
    "number-form": "The field takes a whole number, without quotes or decimal point.",
    "unknown-field": "No field of that name exists here; Triton refuses the whole file.",
    "misplaced-field": "The field exists, but in another message.",
    "unknown-enum": "The enum has no such value. config.pbtxt says TYPE_STRING where the wire protocol says BYTES.",
    "two-keys": "A map entry (input_map, parameters, ...) holds one key and one value: write one entry for each key.",
    "two-schedulers": "dynamic_batching, sequence_batching and ensemble_scheduling exclude each other.",
    # Triton refuses the configuration
    "validation": "Triton refuses the configuration when the model is loaded; the text is Triton's.",
    "name-not-directory": "The name must equal the model directory's name; leave it out or change it.",
    "preferred-above-max": "A preferred batch size above max_batch_size is refused: a batch can never be that large.",
    "priority-level": "Priority levels count from 1; level 0 and levels above priority_levels do not exist.",
    "legacy-platform": "The platform 'custom' was dropped in 2020: name the backend instead.",
    "release": "The Triton release that the file is meant for does not have what the file asks for.",
    # accepted, but hardly meant
    "batch-axis-twice": (
        "max_batch_size > 0 adds the batch axis by itself; a leading -1 in the dims of every tensor is a second one."
    ),
    "duplicate-warmup": "Two warm-up samples have one name; Triton's messages cannot tell them apart.",
    "duplicate-map-key": "A key of a map is written twice; only the last one counts.",
    "delay-without-batching": "A queue delay only makes requests wait longer where a batch cannot hold more than one.",
    "priority-without-levels": "priority_queue_policy does nothing without priority_levels.",
    "accelerator-for-tensorrt": (
        "The TensorRT accelerator belongs to ONNX Runtime and TensorFlow models; backend tensorrt is TensorRT already."
    ),
    "too-many-threads": "Instances times threads exceeds the cores: they take turns, and latency grows.",
    "ignored-setting": "The backend does not read this setting.",
}
"""Every rule id and why it matters."""
