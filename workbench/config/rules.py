"""The linter's rules: every id with its severity, its explanation and its fix."""

from __future__ import annotations

from workbench.config.rule import Rule
from workbench.config.texts.rules import TEXT_RULES

_SYNTAX = {
    "parse-error": Rule("error", "Triton's parser refuses the file; message, line and column are the parser's own."),
    "byte-order-mark": Rule(
        "error",
        "The file begins with a UTF-8 byte order mark; Triton's parser takes it for a stray character.",
        "removes the mark",
    ),
    "smart-quotes": Rule(
        "error",
        "Typographic quotes, as a word processor makes them, are not quotes to Triton: use \" or '.",
        "writes plain quotes",
    ),
    "cpp-comment": Rule(
        "error", "A comment begins with #; // and /* */ are not comments in config.pbtxt.", "turns // into #"
    ),
    "yaml-style": Rule(
        "error",
        "The file looks like YAML. config.pbtxt is protobuf text: strings in quotes, lists as [ { ... } ].",
        "writes simple YAML as config.pbtxt",
    ),
    "json-style": Rule(
        "error",
        "The file is the JSON form of a configuration, as the load API takes it. A file has protobuf text: field names "
        "without quotes, no braces around the whole.",
        "writes it as config.pbtxt",
    ),
    "template-placeholder": Rule("error", "A template was not filled in: a value must stand where the placeholder is."),
    "unquoted-string": Rule("error", "A string value must stand in quotes.", "puts it in quotes"),
    "trailing-comma": Rule("error", "A list must not end with a comma.", "removes the comma"),
    "number-form": Rule(
        "error", "The field takes a whole number, without quotes or decimal point.", "writes the whole number"
    ),
    "unknown-field": Rule(
        "error",
        "No field of that name exists here; Triton refuses the whole file.",
        "writes the field's right name, where one is close",
    ),
    "misplaced-field": Rule(
        "error", "The field exists, but in another message.", "moves it there, or removes it where that is not clear"
    ),
    "unknown-enum": Rule(
        "error",
        "The enum has no such value. config.pbtxt says TYPE_STRING where the wire protocol says BYTES.",
        "writes the right name, where one is close",
    ),
    "two-keys": Rule(
        "error",
        "A map entry (input_map, parameters, ...) holds one key and one value: write one entry for each key.",
        "writes one entry for each key",
    ),
    "missing-separator": Rule(
        "error",
        "A colon stands between a field's name and its value, a comma between the items of a list.",
        "writes the colon or the comma",
    ),
    "list-form": Rule("error", "A list stands in brackets: dims: [ 3, 224, 224 ].", "puts it in brackets"),
    "quoted-value": Rule(
        "error",
        "Names of fields and enums, true and false stand without quotes; only strings have them.",
        "takes the quotes away, or writes true or false",
    ),
    "message-form": Rule(
        "error",
        'The field holds other fields, in braces: value { string_value: "..." }, latest { num_versions: 2 }.',
        "writes the braces, where it is clear what stands in them",
    ),
    "unbalanced": Rule("error", "A brace or bracket is not closed, or one closes nothing."),
    "duplicate-field": Rule("error", "The field is written twice in one message, and can have one value only."),
    "two-schedulers": Rule(
        "error",
        "dynamic_batching, sequence_batching and ensemble_scheduling exclude each other. An ensemble has no batcher of "
        "its own: the models of its steps have.",
        "removes the other scheduler of an ensemble",
    ),
}

_REFUSED = {
    "validation": Rule(
        "error",
        "Triton refuses the configuration when the model is loaded; the text is Triton's.",
        "removes what must not be there",
    ),
    "name-not-directory": Rule(
        "error",
        "The name must equal the model directory's name; leave it out or change it.",
        "sets the name to the directory's",
    ),
    "unknown-platform": Rule(
        "error",
        "Triton knows no such platform. New models name a backend instead and leave the platform out.",
        "writes the platform that was meant, or the backend that it names",
    ),
    "legacy-platform": Rule(
        "error", "The platform 'custom' was dropped in 2020: name the backend instead.", "names the backend"
    ),
    "platform-backend-pair": Rule(
        "error", "Platform and backend contradict each other; one of them is enough.", "removes one of the two"
    ),
    "unknown-backend": Rule(
        "warning",
        "Triton brings no backend of that name. It loads one of your own where libtriton_NAME.so lies in the model or "
        "version directory, or in the server's backend directory, which cannot be seen from here.",
        "writes the backend's right name, where one is close",
    ),
    "runtime-path": Rule(
        "error",
        "runtime names a library inside the backend's directory; no path leads out.",
        "removes runtime",
    ),
    "preferred-above-max": Rule(
        "error",
        "A preferred batch size above max_batch_size is refused: no batch can be that large. A max_batch_size that is "
        "not set is 0.",
        "removes the size",
    ),
    "priority-level": Rule(
        "error",
        "Priority levels count from 1; level 0 and levels above priority_levels do not exist.",
        "counts from 1, or removes the policy of a level that does not exist",
    ),
    "preserve-ordering": Rule(
        "error",
        "Answers in the order of the requests exclude several priority levels, and requests that are moved behind "
        "others (timeout_action DELAY).",
        "sets timeout_action to REJECT",
    ),
    "response-cache": Rule(
        "error",
        "Triton does not cache responses of sequence or decoupled models and refuses the configuration.",
        "switches the cache off",
    ),
    "sequence-control": Rule(
        "error",
        "The control tensors of a sequence model (START, END, READY, CORRID) are not described as Triton needs them.",
    ),
    "sequence-settings": Rule("error", "A setting of the sequence batcher is out of its range."),
    "sequence-state": Rule(
        "error",
        "An implicit state or its initial state is not described as Triton needs it, or its file is missing or too "
        "short. Triton reads it from initial_state/ in the model directory.",
    ),
    "io-incomplete": Rule(
        "error",
        "An input or output needs name, data_type and dims. Some backends read what is missing from the model file "
        "when the model is loaded (auto-completion): then this is a warning.",
    ),
    "io-dims": Rule("error", "A dimension is a whole number from 1, or -1 for any size."),
    "io-reshape": Rule("error", "dims and reshape must hold the same number of elements."),
    "io-format": Rule("error", "format, is_shape_tensor and is_non_linear_format_io are for few models; see the text."),
    "batch-io": Rule("error", "A batch_input or batch_output does not fit the model's inputs and outputs."),
    "instance-group": Rule(
        "error", "The instances cannot be placed where the configuration wants them.", "removes gpus"
    ),
    "model-metrics": Rule("error", "model_metrics is not complete."),
    "ensemble-settings": Rule(
        "error",
        "An ensemble only passes tensors on: it has no backend, instances, optimization or warm-up of its own.",
        "removes what an ensemble cannot have",
    ),
    "ensemble-graph": Rule(
        "error", "The steps of the ensemble and its inputs and outputs do not make a complete graph of tensors."
    ),
    "ensemble-tensors": Rule(
        "error",
        "A step does not fit its model: names of inputs and outputs, data types, shapes, batch sizes, or inputs from "
        "different decoupled models. The first of the two models named is where the tensor was seen first.",
        "writes the right name where one is close, lowers the ensemble's max_batch_size",
    ),
    "ensemble-dependency": Rule(
        "error",
        "A model that the ensemble is made of is not there, not unique, cannot be loaded, or not in the version asked.",
        "writes the model's right name, where one is close",
    ),
    "ensemble-circular": Rule("error", "The ensemble is made of itself, directly or through other ensembles."),
    "release": Rule(
        "error",
        "The Triton release that the file is meant for does not have what the file asks for, or not any more.",
        "removes a field that the release does not know",
    ),
}

_DIRECTORY = {
    "no-backend": Rule(
        "error",
        "Where no configuration names a backend, Triton tells it by the model file in the first version directory "
        "(model.onnx, model.py, ...); there is none. If the directory is no model, move it out of the repository.",
    ),
    "no-config": Rule(
        "hint",
        "There is no config.pbtxt. Triton completes it where the backend can (ONNX, OpenVINO, TensorFlow, TensorRT by "
        "the model file, Python by auto_complete_config); it must not be started with --disable-auto-complete-config.",
    ),
    "no-version": Rule(
        "error",
        "A model needs at least one version directory with a number as its name, also an ensemble (an empty one).",
    ),
    "version-directory": Rule("hint", "Triton ignores the directory, or takes it for a version that was not meant."),
    "missing-version": Rule("warning", "The version policy names a version that is not there; the others are served."),
    "model-file": Rule("error", "The file that the backend loads is not in the version directory."),
    "model-fit": Rule("error", "The configuration does not fit the inputs and outputs of the model file."),
    "label-file": Rule("error", "The label file of an output must lie in the model directory; the load fails without."),
    "duplicate-model": Rule("error", "Two repositories hold a model of this name; Triton loads neither."),
}

_WARMUP = {
    "warmup-input": Rule(
        "error",
        "The keys of a warm-up sample's inputs are the names of the model's inputs; each input that is not optional "
        "needs one.",
        "writes the input's right name, where one is close",
    ),
    "warmup-data": Rule(
        "error",
        "Each input of a warm-up sample needs a data type, all its dims as numbers, and one choice of data: zero_data, "
        "random_data or input_data_file.",
        "sets a data choice of false to true",
    ),
    "warmup-batch": Rule(
        "error",
        "batch_size is how many requests of one row are executed together; more than max_batch_size are refused by the "
        "backend. count repeats a sample.",
        "lowers it to max_batch_size",
    ),
    "warmup-file": Rule("error", "The file is read from warmup/ in the model directory; it is missing or too short."),
    "warmup-shape": Rule(
        "error",
        "A warm-up input must have the data type and the dims of the model's input; dims are those of one row, without "
        "the batch dimension.",
        "sets the data type to the input's",
    ),
    "duplicate-warmup": Rule(
        "warning", "Two warm-up samples have one name; Triton's messages cannot tell them apart.", "renames the second"
    ),
}

_BATCHING = {
    "batch-axis-twice": Rule(
        "hint",
        "max_batch_size > 0 adds the batch axis by itself; a leading -1 in the dims of every tensor is a second one.",
        "removes the leading -1",
    ),
    "batch-axis-in-dims": Rule(
        "hint",
        "A batch axis written into dims is a dimension like any other: Triton puts no requests together. With "
        "max_batch_size set and the leading -1 left out it would.",
    ),
    "fixed-batch": Rule(
        "warning",
        "With max_batch_size Triton's OpenVINO backend gives the model a batch of that many rows: without "
        "ENABLE_BATCH_PADDING it refuses every batch that is not a single full request.",
        "sets ENABLE_BATCH_PADDING to YES",
    ),
    "delay-without-batching": Rule(
        "warning",
        "A queue delay only makes requests wait longer where a batch cannot hold more than one.",
        "removes the delay",
    ),
    "batching-without-max": Rule(
        "warning", "dynamic_batching puts nothing together where max_batch_size is 0 or not set."
    ),
    "preferred-without-delay": Rule(
        "hint",
        "Without max_queue_delay_microseconds nothing waits for a preferred size: whatever is queued goes at once. The "
        "sizes only cut a queue that is longer.",
    ),
    "delay-above-goal": Rule(
        "warning",
        "A request may wait for the whole queue delay before it runs: a delay above the latency goal cannot meet it.",
    ),
    "delay-above-timeout": Rule(
        "warning",
        "A request that waits for company is timed out before the delay is over: it is refused without having run.",
    ),
    "queue-below-preferred": Rule(
        "warning",
        "No more requests than max_queue_size wait at a time, so a preferred size above it cannot form from requests "
        "of one row.",
    ),
    "timeout-without-effect": Rule(
        "warning",
        "A request's own timeout counts only where it is shorter than default_timeout_microseconds; with the default 0 "
        "(none) allow_timeout_override and timeout_action do nothing.",
    ),
    "priority-without-levels": Rule(
        "warning", "priority_queue_policy does nothing without priority_levels.", "removes it"
    ),
    "default-policy-unused": Rule(
        "hint", "Every priority level has a policy of its own, which replaces default_queue_policy whole."
    ),
    "slot-utilization-without-delay": Rule(
        "hint", "minimum_slot_utilization counts only while max_queue_delay_microseconds lets requests wait."
    ),
    "sequence-idle-short": Rule(
        "hint",
        "max_sequence_idle_microseconds is how long a sequence may go without a request before Triton ends it; below "
        "10 ms another unit was probably meant.",
    ),
    "instance-count": Rule(
        "hint",
        "Without a count, or with one below 1, a group has one instance; two on the CPU with ONNX Runtime or "
        "TensorFlow. On GPUs count is for each GPU of the group.",
        "writes the number that Triton takes",
    ),
    "too-many-threads": Rule(
        "warning",
        "Instances times threads exceeds the cores: they take turns, and latency grows. ONNX Runtime takes every core "
        "for each instance unless intra_op_thread_count says otherwise. Judged where the cores are known (--cores).",
        "sets the threads so that all instances fit",
    ),
    "priority-not-everywhere": Rule(
        "hint",
        "An ensemble passes a request's priority to each step; only a step whose model declares priority_levels lets "
        "it overtake others.",
    ),
    "rate-limiter-resource": Rule(
        "error",
        "A resource of the rate limiter is both global and of a device, or less of it is declared than one instance "
        "needs. Counts with --rate-limit=execution_count only.",
    ),
    "ensemble-not-checked": Rule(
        "hint",
        "The inputs and outputs of a step's model are in no file that can be read here, so the step cannot be compared "
        "with it.",
    ),
}

_MEANING = {
    "duplicate-map-key": Rule("warning", "A key of a map is written twice; only the last one counts."),
    "empty-map-key": Rule(
        "warning",
        "`metric_tags: {}` or `parameters {}` is not an empty map but one entry with an empty key.",
        "removes the entry",
    ),
    "redundant-platform": Rule(
        "hint",
        "The backend says it all; a platform beside it is one more thing to keep right.",
    ),
    "reshape-without-effect": Rule("hint", "The reshape is what dims says already.", "removes the reshape"),
    "dims-for-format": Rule(
        "warning", "FORMAT_NCHW has the channels first, FORMAT_NHWC last; these dims look like the other one."
    ),
    "accelerator-for-tensorrt": Rule(
        "warning",
        "The TensorRT accelerator belongs to ONNX Runtime and TensorFlow models; backend tensorrt is TensorRT already.",
        "removes it",
    ),
    "unknown-parameter": Rule(
        "hint",
        "The backend reads parameters by their exact names and ignores others silently; this one is close to a name "
        "that it reads.",
        "writes the right name",
    ),
    "ignored-setting": Rule("hint", "The backend does not read this setting.", "removes it"),
}

RULES: dict[str, Rule] = {**_SYNTAX, **_REFUSED, **_DIRECTORY, **_WARMUP, **_BATCHING, **_MEANING, **TEXT_RULES}
"""Every rule by its id."""
