"""Lint of a configuration that Triton refuses: its texts, each with a rule, a place and a fix."""

from __future__ import annotations

import re

from workbench.config.findings import Fix, LintContext
from workbench.config.lint_checker import Checker, removal
from workbench.config.normalization import BACKENDS, PLATFORMS, backend_of_platform, complete_backend, normalize
from workbench.config.path import Edit
from workbench.config.problem import Problem
from workbench.config.schema import Message
from workbench.config.spelling import closest
from workbench.config.syntax import MessageNode, ScalarNode, walk
from workbench.config.validation import problems
from workbench.errors import ConfigError


def lint_refused(check: Checker) -> None:
    """What Triton says when it reads the configuration; where a placeholder or a legacy platform stands, only that."""
    message, context = check.message, check.context
    name = context.directory_name
    if name is not None and message.name and message.name != name:
        text = f"unexpected directory name '{name}' for model '{message.name}', directory name must equal model name"
        check.say("name-not-directory", "name", text, Fix(f'Set name to "{name}"', (Edit("name", "set", name),)))
    if message.platform == "custom":
        text = f"unexpected platform type 'custom' for {message.name or name or 'the model'}"
        check.say("legacy-platform", "platform", text, _custom_fix(message))
        return
    for problem in problems(prepared(message, context), gpus=context.gpus or (), io=True):
        if _needs_gpus(problem, message, context) or (_unknown_backend(problem) and not _told(message)):
            continue
        rule, text = rule_of(problem), problem.message
        severity = None
        if rule == "io-incomplete" and _may_be_completed(problem, check):
            text, severity = f"{text} (unless the backend completes it)", "warning"
        check.say(rule, problem.path, text + _more(problem, check), _fix_of(problem, check), severity)  # type: ignore[arg-type]
    _backend(check)


_RULE_BY_TEXT = (
    ("unexpected platform type", "unknown-platform"),
    ("must have platform type 'ensemble'", "platform-backend-pair"),
    ("unexpected 'platform' and 'backend' pair", "platform-backend-pair"),
    ("must have priority level in range", "priority-level"),
    ("default priority level", "priority-level"),
    ("'preserve_ordering'", "preserve-ordering"),
    ("Response Cache", "response-cache"),
    ("preferred size must", "preferred-above-max"),
    ("preferred batch size must", "preferred-above-max"),
    ("slot utilization", "sequence-settings"),
    ("ensemble scheduling must be set", "ensemble-settings"),
    ("ensemble scheduling cannot be set", "ensemble-settings"),
    ("not be specified for ensemble", "ensemble-settings"),
    ("for ensemble", "ensemble-graph"),
    ("of ensemble", "ensemble-graph"),
    ("ensemble tensor", "ensemble-graph"),
    ("must specify 'name'", "io-incomplete"),
    ("must specify 'data_type'", "io-incomplete"),
    ("must specify 'dims'", "io-incomplete"),
    ("reshape", "io-reshape"),
    ("dimension must be integer", "io-dims"),
    ("require 3 dims", "io-format"),
    ("only supported for", "io-format"),
    ("escapes backend directory", "runtime-path"),
)
_RULE_BY_PATH = {
    "sequence_batching": "sequence-control",
    "model_metrics": "model-metrics",
    "instance_group": "instance-group",
    "batch_input": "batch-io",
    "batch_output": "batch-io",
}


def rule_of(problem: Problem) -> str:
    """The rule that a refusal of Triton belongs to."""
    head = re.split(r"[.\[]", problem.path, maxsplit=1)[0]
    for text, rule in _RULE_BY_TEXT:
        if text in problem.message and head not in ("batch_input", "batch_output"):
            return rule
    return _RULE_BY_PATH.get(head, "validation")


def prepared(message: Message, context: LintContext) -> Message:
    """The configuration as Triton checks it, as far as it can be told from one file."""
    name = message.name or context.directory_name or "model"
    if message.backend == "tensorflow" and context.files is None and not message.platform:
        message = type(message).FromString(message.SerializeToString())
        message.platform = "tensorflow_savedmodel"  # the files would tell which of the two
    try:
        complete = complete_backend(message, name, context.files or ())
    except ConfigError:
        complete = complete_backend(message, name, ("model.py",))  # the backend is told by files that are not known
    return normalize(complete, model_name=name, gpus=context.gpus or ())


def _told(message: Message) -> bool:
    return bool(message.platform or message.backend)


def _unknown_backend(problem: Problem) -> bool:
    return "unexpected platform type ''" in problem.message


def _may_be_completed(problem: Problem, check: Checker) -> bool:
    """Whether auto-completion could fill in what is missing, so that Triton would not refuse it."""
    if (
        not check.context.auto_complete
        or "must specify 'name'" in problem.message
        or check.message.platform == "ensemble"
    ):
        return False
    return check.backend != "pytorch"  # its files do not say (9.5)


def _needs_gpus(problem: Problem, message: Message, context: LintContext) -> bool:
    """Whether GPUs decide that are not known here; a negative id is wrong everywhere."""
    text = problem.message
    about = "has kind KIND_GPU but" in text or "unsupported gpu id" in text
    if "has kind KIND_CPU but" in text:  # KIND_AUTO is a GPU where there is one (9.7)
        group = re.match(r"instance_group\[(\d+)\]", problem.path)
        about = group is not None and message.instance_group[int(group.group(1))].kind == 0
    return about and context.gpus is None and "gpu id -" not in text


def _more(problem: Problem, check: Checker) -> str:
    """What is added to Triton's text for people."""
    text = problem.message
    if "must be <= max batch size" in text and check.message.max_batch_size == 0:
        given = check.document.locate("max_batch_size") is not None
        return f" (max_batch_size is 0{'' if given else ': not set'})"
    if "unexpected platform type" in text:
        better = _platform_meant(check.message.platform)
        return f". Did you mean {better}?" if better else ""
    if "default priority level must be in range" in text:
        lowest = check.message.dynamic_batching.priority_levels
        return f" (a request without a priority takes this level; {lowest} is the lowest)"
    if "different size for dims and reshape" in text:
        return _sizes(problem, check.message)
    if rule_of(problem) == "ensemble-graph":
        return _unconnected(problem, check.message)
    return ""


def _sizes(problem: Problem, message: Message) -> str:
    """The two shapes that do not hold the same number of elements."""
    match = re.match(r"(input|output)\[(\d+)\]", problem.path)
    if match is None:
        return ""
    tensor = getattr(message, match.group(1))[int(match.group(2))]
    dims, shape = list(tensor.dims), list(tensor.reshape.shape)
    return f" (dims {dims}, reshape {shape}" + ("" if shape else ": one element") + ")"


def _graph(message: Message) -> tuple[set[str], set[str]]:
    """The tensors of an ensemble that something writes, and those that something reads."""
    written, read = {each.name for each in message.input}, {each.name for each in message.output}
    for step in message.ensemble_scheduling.step:
        written |= set(step.output_map.values())
        read |= set(step.input_map.values())
    return written, read


def _named(problem: Problem) -> str:
    """The tensor that a refusal of an ensemble's graph is about."""
    match = re.search(r"(?:tensor|input|output|tensors,) '([^']+)'", problem.message)
    return match.group(1) if match is not None else ""


def _tensor_meant(problem: Problem, message: Message) -> str | None:
    """The tensor that a step meant to read: one of a close name that nothing reads."""
    written, read = _graph(message)
    name = _named(problem)
    return None if name in written else closest(name, tuple(sorted(written - read)))


def _unconnected(problem: Problem, message: Message) -> str:
    """On which side a tensor of an ensemble lacks its other end."""
    written, read = _graph(message)
    name = _named(problem)
    if name not in written:
        better = _tensor_meant(problem, message)
        return f" (nothing writes '{name}'" + (f"; did you mean '{better}'?)" if better else ")")
    return "" if name in read else f" (nothing reads '{name}')"


def _platform_meant(platform: str) -> str:
    """How people would name what was meant: a platform, or a backend."""
    close = closest(platform, (*PLATFORMS, "ensemble"), cutoff=0.75)
    if close is not None:
        return f"platform '{close}'"
    backend = backend_meant(platform)
    return "" if backend is None else f"backend '{backend}'"


# the backend

_ALIASES = {
    "onnx": "onnxruntime",
    "ort": "onnxruntime",
    "onnxrt": "onnxruntime",
    "torch": "pytorch",
    "libtorch": "pytorch",
    "torchscript": "pytorch",
    "trt": "tensorrt",
    "tensorrtplan": "tensorrt",
    "tf": "tensorflow",
    "keras": "tensorflow",
    "py": "python",
    "python3": "python",
    "trtllm": "tensorrtllm",
    "xgboost": "fil",
    "lightgbm": "fil",
    "sklearn": "fil",
    "openvinoruntime": "openvino",
}


def backend_meant(name: str) -> str | None:
    """The backend that Triton brings and that is meant by a wrong name; None where none is close."""
    bare = name.lower().replace("_", "").replace("-", "")
    return _ALIASES.get(bare) or closest(name, BACKENDS, cutoff=0.75)


def _backend(check: Checker) -> None:
    message, context = check.message, check.context
    backend = message.backend
    if not backend or backend in BACKENDS or message.runtime or "$" in backend or "{{" in backend:
        return
    if context.files is not None and f"libtriton_{backend}.so" in context.files:
        return
    text = f"unable to find backend library for backend '{backend}', try specifying runtime on the model configuration."
    better = backend_meant(backend)
    if better is not None:
        fix = Fix(f'Set backend to "{better}"', (Edit("backend", "set", better),))
        check.say("unknown-backend", "backend", f"{text} Did you mean '{better}'?", fix, "error")
        return
    more = f"Triton brings none of that name; libtriton_{backend}.so must be in the server's backend directory"
    check.say("unknown-backend", "backend", f"{text} ({more})")


# fixes


def _custom_fix(message: Message) -> Fix | None:
    stem = message.default_model_filename.removeprefix("lib").removesuffix(".so")
    if not message.default_model_filename.endswith(".so") or not stem:
        return None
    edits = [Edit("platform", "remove"), Edit("backend", "set", stem)]
    if message.default_model_filename != f"libtriton_{stem}.so":
        edits += [Edit("runtime", "set", message.default_model_filename), Edit("default_model_filename", "remove")]
    return Fix(f'Replace platform "custom" by backend "{stem}"', tuple(edits))


def _platform_fix(message: Message) -> Fix | None:
    close = closest(message.platform, (*PLATFORMS, "ensemble"), cutoff=0.75)
    if close is not None:
        return Fix(f'Set platform to "{close}"', (Edit("platform", "set", close),))
    backend = backend_meant(message.platform)
    if backend is None:
        return None
    edits = (Edit("platform", "remove"), Edit("backend", "set", backend))
    return Fix(f'Replace the platform by backend "{backend}"', edits)


def _levels_fix(path: str, check: Checker) -> Fix:
    """Levels counted from 0 are counted from 1 instead; a level too high is removed."""
    batching = check.message.dynamic_batching
    levels = sorted(batching.priority_queue_policy)
    if 0 in levels and levels[-1] < batching.priority_levels:
        changes = [
            (node.start, node.end, str(int(node.value) + 1).encode())
            for node in _level_keys(check)
            if isinstance(node.value, int)
        ]
        if len(changes) == len(levels):
            return Fix("Count the levels from 1 (1 is the highest)", (), tuple(changes))
    return removal(path, "Remove the policy of a level that does not exist")


def _level_keys(check: Checker) -> list[ScalarNode]:
    """The keys of ``priority_queue_policy`` as they are written."""
    keys: list[ScalarNode] = []
    for node in walk(check.document.tree):
        if node.type.name == "priority_queue_policy":
            for entry in node.items():
                if isinstance(entry, MessageNode):
                    keys += [each.value for each in entry.named("key") if isinstance(each.value, ScalarNode)]
    return keys


def _fix_of(problem: Problem, check: Checker) -> Fix | None:
    """A fix where there is one that most people would choose."""
    path, text, message = problem.path, problem.message, check.message
    if "preferred" in text and ("must be <= max" in text or "must be positive" in text):
        return removal(path, "Remove this preferred batch size") if check.document.locate(path) else None
    if "default priority level must be in range" in text:
        # the lowest: whoever names a level can then overtake those who name none
        lowest = check.message.dynamic_batching.priority_levels
        edit = Edit("dynamic_batching.default_priority_level", "set", lowest)
        return Fix(f"Set default_priority_level to {lowest}, the lowest", (edit,))
    if "priority queue policy must have priority level" in text:
        return _levels_fix(path, check)
    if "has kind KIND_CPU but" in text or "has kind KIND_MODEL but" in text:
        return removal(path, "Remove gpus")
    if text.startswith("'max_batch_size' must be non-negative"):
        return Fix("Set max_batch_size to 0", (Edit("max_batch_size", "set", 0),))
    if "is unused in ensemble" in text and "input_map" in path:
        better = _tensor_meant(problem, message)
        return None if better is None else Fix(f'Write "{better}"', (Edit(path, "set", better),))
    if "not be specified for ensemble" in text:
        return removal(path, f"Remove {path}")
    if "Please disable the response cache" in text:
        return Fix("Disable the response cache", (Edit("response_cache.enable", "set", False),))
    if "can not have DELAY as timeout action" in text:
        return Fix("Set timeout_action to REJECT", (Edit(path, "set", "REJECT"),))
    return _backend_fix(text, message)


def _backend_fix(text: str, message: Message) -> Fix | None:
    if "must have platform type 'ensemble'" in text:
        return removal("backend", "Remove backend")
    if text.startswith("unexpected 'platform' and 'backend' pair") and message.backend:
        return removal("platform", "Remove platform, keep backend")
    if "unexpected platform type" in text and not backend_of_platform(message.platform):
        return _platform_fix(message)
    if "cannot be set for model" in text and not message.platform and not message.backend:
        return Fix('Set platform to "ensemble"', (Edit("platform", "set", "ensemble"),))
    if "escapes backend directory" in text:
        return removal("runtime", "Remove runtime")
    return None
