"""The rules about texts: every id with its severity, its explanation and its fix."""

from __future__ import annotations

from workbench.config.rule import Rule

_MODEL = {
    "python-syntax": Rule("error", "Python cannot read the file, so the model fails to load."),
    "python-no-class": Rule(
        "error", "Triton loads the class TritonPythonModel of model.py.", "renames a class that is nearly called so"
    ),
    "python-bare-execute": Rule(
        "error",
        "The Python backend calls methods of the class TritonPythonModel, never a function of the module; inputs are "
        "taken from each request, and outputs are returned in an InferenceResponse.",
        "writes the function as the class, where its body can be carried over (outputs are named OUTPUT0, ... where "
        "the configuration is not known)",
    ),
    "python-no-execute": Rule("error", "A model without a method execute cannot answer."),
    "python-signature": Rule(
        "error",
        "Triton calls initialize(self, args), execute(self, requests), finalize(self), is_ready(self) and the static "
        "auto_complete_config(auto_complete_model_config).",
        "writes the arguments, where those that are dropped are not used",
    ),
    "python-release": Rule("hint", "Triton calls is_ready since release 26.03."),
    "python-auto-complete": Rule("error", "auto_complete_config returns the configuration object that it was given."),
    "python-returns": Rule(
        "error",
        "execute returns a list with one InferenceResponse for each request; only a model that sends its responses "
        "returns None.",
        "puts a single response into a list",
    ),
    "python-response-count": Rule(
        "hint", "With dynamic batching execute gets several requests at once and answers each of them."
    ),
    "python-decoupled": Rule(
        "error",
        "Whether a model may send none or several responses for a request is a matter of the configuration: "
        "model_transaction_policy { decoupled: true }. Then execute returns None.",
    ),
    "python-outputs": Rule("error", "A model makes its outputs; there are none to be filled in."),
    "python-import": Rule("error", "A name is used that nothing brings.", "adds the import"),
    "python-utils": Rule(
        "error", "triton_python_backend_utils has no such name.", "writes the right name, where one is close"
    ),
    "python-keyword": Rule("error", "The call has no such argument.", "writes the right name, where one is close"),
    "python-await": Rule("error", "exec() answers at once; async_exec() is awaited.", "writes async_exec"),
    "python-tensor-name": Rule(
        "error",
        "The names of a model's tensors are those of its configuration.",
        "writes the right name, where one is close",
    ),
    "python-config-text": Rule(
        "error", "args['model_config'] is JSON text, so it has no members.", "reads it with json.loads"
    ),
}

_CLIENT = {
    "client-url": Rule("error", "Triton's clients take host:port; the scheme is refused.", "removes the scheme"),
    "client-datatype": Rule(
        "error", "The client refuses an array whose type is not the input's.", "converts the array"
    ),
    "wrong-port": Rule("hint", "Triton's own ports are 8000 for HTTP, 8001 for gRPC and 8002 for metrics."),
    "wrong-method": Rule(
        "error", "The endpoint answers the other method only: 405 Method Not Allowed.", "adds -X POST"
    ),
    "unknown-endpoint": Rule(
        "error", "Triton has no such address: 404 Not Found.", "writes the right one, where it is close"
    ),
    "metrics-port": Rule("error", "Metrics are served on a port of their own.", "writes 8002"),
}

_REQUEST = {
    "request-json": Rule("error", "The body is no JSON; Triton answers 500."),
    "request-field": Rule(
        "error",
        "An input has name, shape, datatype and one kind of data, an output name and parameters. What is missing is "
        "answered with an error, what is more is silently not read.",
        "writes the right name, where one is close",
    ),
    "request-input": Rule(
        "error", "The inputs are not those of the model.", "writes the right name or data type, where it is clear"
    ),
    "request-source": Rule("error", "An input has exactly one of data, binary_data_size and shared_memory_region."),
    "request-binary-data": Rule(
        "error",
        "binary_data asks for the raw form of an output. An input in raw form has binary_data_size, its bytes stand "
        "behind the JSON, and the header Inference-Header-Content-Length says how long the JSON is. There is no "
        "base64.",
        "sends the array as numbers",
    ),
    "request-datatype": Rule(
        "error",
        "On the wire the data types are BOOL, INT32, FP32, BYTES, ...; TYPE_FP32 and TYPE_STRING are for config.pbtxt.",
        "writes the wire's name",
    ),
    "request-shape": Rule("error", "The shape says how many elements data has."),
    "request-half": Rule("error", "JSON has no half precision numbers: FP16 and BF16 are sent in binary form only."),
    "request-value": Rule("error", "A value does not fit the data type; integers out of range wrap around silently."),
    "request-parameter": Rule("error", "A parameter has the wrong type, or a reserved name."),
}

_METRICS = {
    "metric-unknown": Rule("error", "Triton has no metric of that name.", "writes the right name, where one is close"),
    "metric-series": Rule(
        "error",
        "Triton's durations are counters (or summaries, where they are switched on): there are no histogram buckets, "
        "and no _sum or _count beside a counter.",
        "writes the counter, or removes the sample",
    ),
    "metric-label": Rule("warning", "The metric has no such label, so nothing is found.", "writes the label's name"),
}

_COMMANDS = {
    "server-option": Rule(
        "error", "tritonserver stops at an option that it does not know.", "writes the right name, where one is close"
    ),
    "server-option-value": Rule(
        "error", "The option does not take this value.", "writes the right value, where one is close"
    ),
    "server-option-ignored": Rule(
        "warning", "The option does nothing together with the others.", "adds the option that it needs"
    ),
    "server-option-old": Rule("warning", "The option is deprecated.", "writes what replaces it"),
    "server-load-model": Rule(
        "error", "--load-model is for explicit mode, and * stands alone.", "adds --model-control-mode=explicit"
    ),
    "shell-continuation": Rule(
        "error", "A command goes on in the next line only behind a \\ at the very end.", "adds it, moves comments above"
    ),
    "docker-command": Rule("error", "The program stands behind the image.", "adds tritonserver"),
    "docker-mount": Rule("error", "The image holds no models: a directory of the host must be mounted."),
    "image-tag": Rule("error", "The registry has no such tag.", "adds -py3 to a release"),
    "trtexec-option": Rule("error", "trtexec has lost the option.", "writes what replaces it"),
    "trtexec-shapes": Rule("error", "A profile has min, opt and max for the same inputs, each at most the next."),
    "trtexec-cuda-graph": Rule("hint", "An option of trtexec's timing does not change the engine that is saved."),
    "perf-option": Rule(
        "error", "perf_analyzer does not start with these options.", "writes the right name, where one is close"
    ),
    "perf-shape": Rule("error", "perf_analyzer makes up inputs of fixed shapes only."),
}

_OTHER = {
    "tree-version": Rule(
        "error",
        "A model has version directories with a number as their name, an ensemble an empty one; the model's file lies "
        "inside.",
        "adds the directory 1/, or writes the number",
    ),
    "tree-config": Rule("error", "The configuration's file is called config.pbtxt.", "writes the name"),
    "instances-per-gpu": Rule("hint", "On GPUs count is for each GPU of the group, not for all of them."),
    "execution-env": Rule(
        "warning",
        "EXECUTION_ENV_PATH is an archive made by conda-pack, or a directory with an environment (bin/activate).",
    ),
    "no-triton-text": Rule("hint", "The text looks like a configuration and is none."),
    "claim-poll-default": Rule(
        "warning", "Triton's default model control mode is none.", "says that poll is not the default"
    ),
    "claim-auto-reload": Rule("warning", "Triton looks for changes in the repository in mode poll only."),
    "claim-ensemble-priority": Rule("warning", "Priority and timeout of an ensemble's request go to every step."),
    "claim-version-policy": Rule("warning", "The version policies are latest, all and specific."),
    "claim-priority-zero": Rule("warning", "Priority 1 is the highest."),
    "claim-count-gpus": Rule("warning", "instance_group.count is for each GPU of the group."),
}

TEXT_RULES: dict[str, Rule] = {**_MODEL, **_CLIENT, **_REQUEST, **_METRICS, **_COMMANDS, **_OTHER}
"""Every rule about texts by its id."""
