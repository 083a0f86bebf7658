"""The checks that Triton makes of one configuration, in its order and with its texts.

Source: core ``model_config_utils.cc`` (ValidateModelConfig, ValidateModelIOConfig, ValidateInstanceGroup), checked
against the log of tritonserver 2.51. Each problem carries the path that it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from workbench.config.document import ConfigDocument
from workbench.config.normalization import backend_of_platform
from workbench.config.problem import Problem
from workbench.config.schema import Message, enum_name, pb
from workbench.config.validate_ensemble import ensemble_problems
from workbench.config.validate_io import io_problems
from workbench.errors import Code, ConfigError

MIN_COMPUTE_CAPABILITY = 6.0
"""The compute capability from which Triton uses a GPU (``--min-supported-compute-capability``)."""


class ValidationError(ConfigError):
    """A configuration that Triton refuses; ``path`` is the place in it."""

    def __init__(self, problem: Problem, *, where: str = "") -> None:
        super().__init__(problem.message, where=where or problem.path)
        self.path = problem.path
        if "has unexpected kind" in problem.message:
            self.code = Code.INTERNAL


def validate(
    message: Message,
    *,
    gpus: Sequence[int] = (),
    io: bool = True,
    where: str = "",
    min_compute_capability: float = MIN_COMPUTE_CAPABILITY,
) -> None:
    """Raises what Triton says first about a normalised configuration.

    Args:
        message: a configuration after ``complete_backend`` and ``normalize``.
        gpus: ids of the GPUs that may be used here.
        io: also check inputs and outputs (Triton does so only after auto-completion has filled them).
        where: the file, for the exception only.
        min_compute_capability: the least that a GPU must have to be one of ``gpus``, for texts.

    Raises:
        ValidationError: a ``ConfigError`` with Triton's text and the path in the configuration.
    """
    for problem in problems(message, gpus=gpus, io=io, min_compute_capability=min_compute_capability):
        if problem.path == "runtime":  # a server says so where it looks for the library, and knows which there are
            continue
        error = ValidationError(problem, where=where)
        if "must be <= max batch size" in problem.message and not message.max_batch_size:
            error.hint = "max_batch_size is 0 or not set: set it to the largest batch that the model takes"
        raise error


def problems(
    message: Message,
    *,
    gpus: Sequence[int] = (),
    io: bool = True,
    min_compute_capability: float = MIN_COMPUTE_CAPABILITY,
) -> Iterator[Problem]:
    """Everything that Triton would refuse, in the order in which it looks."""
    if not message.name:
        yield Problem("name", "model configuration must specify 'name'")
    yield from _platform(message)
    if message.max_batch_size < 0:
        yield Problem("max_batch_size", f"'max_batch_size' must be non-negative value for {message.name}")
    if not message.HasField("version_policy"):
        yield Problem("version_policy", f"must specify 'version policy' for {message.name}")
    if message.HasField("dynamic_batching"):
        yield from _dynamic(message)
    if message.HasField("sequence_batching"):
        yield from _sequence(message)
    if message.HasField("ensemble_scheduling"):
        yield from ensemble_problems(message)
    elif message.platform == "ensemble":
        text = f"ensemble scheduling must be set for ensemble {message.name} whose platform is ensemble"
        yield Problem("ensemble_scheduling", text)
    yield from _response_cache(message)
    yield from _metrics(message)
    if not message.HasField("ensemble_scheduling") and message.platform != "ensemble":
        yield from instance_group_problems(message, gpus, min_compute_capability)
    if io:
        yield from io_problems(message)
    if message.runtime and any(part == ".." for part in message.runtime.split("/")):
        yield Problem("runtime", f"backend library name '{message.runtime}' escapes backend directory")


def _platform(message: Message) -> Iterator[Problem]:
    if not message.backend:
        if message.platform != "ensemble":
            yield Problem("platform", f"unexpected platform type '{message.platform}' for {message.name}")
        return
    if message.platform == "ensemble":
        text = f"Ensemble model '{message.name}' must have platform type 'ensemble' and empty backend type"
        yield Problem("backend", text)
        return
    if message.backend in _KNOWN_BACKENDS and backend_of_platform(message.platform) != message.backend:
        text = f"unexpected 'platform' and 'backend' pair, got:{message.platform}, {message.backend}"
        yield Problem("platform", text)


_KNOWN_BACKENDS = ("tensorrt", "tensorflow", "onnxruntime", "pytorch")
"""Backends whose platform must fit; any platform goes with another backend (seen with tritonserver 2.51)."""


def _sizes(sizes: Any, limit: int, path: str, words: str, name: str) -> Iterator[Problem]:
    for index, size in enumerate(sizes):
        if size <= 0:
            yield Problem(f"{path}[{index}]", f"{words} must be positive for {name}")
        elif size > limit:
            yield Problem(f"{path}[{index}]", f"{words} must be <= max batch size for {name}")


def _dynamic(message: Message) -> Iterator[Problem]:
    batching, name, path = message.dynamic_batching, message.name, "dynamic_batching"
    sizes = batching.preferred_batch_size
    yield from _sizes(
        sizes, message.max_batch_size, f"{path}.preferred_batch_size", "dynamic batching preferred size", name
    )
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            text = f"default priority level must be in range [1, {levels}] for {name}"
            yield Problem(f"{path}.default_priority_level", text)
        for level in sorted(batching.priority_queue_policy):
            if not 1 <= level <= levels:
                text = f"priority queue policy must have priority level in range [1, {levels}] for {name}"
                yield Problem(f'{path}.priority_queue_policy["{level}"]', text)
    if batching.preserve_ordering:
        yield from _ordering(batching, name)


def _ordering(batching: Any, name: str) -> Iterator[Problem]:
    path = "dynamic_batching"
    if batching.priority_levels > 1:
        text = f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        yield Problem(f"{path}.priority_levels", text)
    policies = [(f"{path}.default_queue_policy", batching.default_queue_policy)]
    for level in sorted(batching.priority_queue_policy):
        policies.append((f'{path}.priority_queue_policy["{level}"]', batching.priority_queue_policy[level]))
    for place, policy in policies:
        if policy.default_timeout_microseconds and policy.timeout_action == pb().ModelQueuePolicy.DELAY:
            text = f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"
            yield Problem(f"{place}.timeout_action", text)


# sequence batching

_FALSE_TRUE = ("int32_false_true", "fp32_false_true", "bool_false_true")
_EITHER = "'int32_false_true', 'fp32_false_true' or 'bool_false_true'"
_BOTH = "'int32_false_true', 'fp32_false_true' and 'bool_false_true'"
_CORRID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def _sequence(message: Message) -> Iterator[Problem]:
    sequence, name, path = message.sequence_batching, message.name, "sequence_batching"
    yield from _control_names(sequence, name)
    kinds = pb().ModelSequenceBatching.Control
    for kind in (
        kinds.CONTROL_SEQUENCE_START,
        kinds.CONTROL_SEQUENCE_END,
        kinds.CONTROL_SEQUENCE_READY,
        kinds.CONTROL_SEQUENCE_CORRID,
    ):
        yield from _controls_of(sequence, kind, name)
    if sequence.HasField("oldest"):
        place = f"{path}.oldest.preferred_batch_size"
        sizes = sequence.oldest.preferred_batch_size
        yield from _sizes(sizes, message.max_batch_size, place, "sequence batching preferred batch size", name)
    if sequence.HasField("direct") and not 0.0 <= sequence.direct.minimum_slot_utilization <= 1.0:
        text = f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
        yield Problem(f"{path}.direct.minimum_slot_utilization", text)


def _control_names(sequence: Any, name: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, control in enumerate(sequence.control_input):
        place = f"sequence_batching.control_input[{index}]"
        if not control.name:
            yield Problem(place, f"sequence batching control tensor must have a name for {name}")
        elif control.name in seen:
            text = (
                f"sequence batching control tensor '{control.name}' is specified for multiple control kinds for {name}"
            )
            yield Problem(f"{place}.name", text)
        seen.add(control.name)


def _controls_of(sequence: Any, kind: int, name: str) -> Iterator[Problem]:
    kinds = pb().ModelSequenceBatching.Control
    shown = kinds.Kind.Name(kind)
    seen = False
    for index, tensor in enumerate(sequence.control_input):
        for inner, control in enumerate(tensor.control):
            if control.kind != kind:
                continue
            place = f"sequence_batching.control_input[{index}].control[{inner}]"
            if seen:
                yield Problem(f"{place}.kind", f"sequence batching specifies multiple {shown} tensors for {name}")
            seen = True
            if kind == kinds.CONTROL_SEQUENCE_CORRID:
                yield from _corrid(control, place, shown, name)
            else:
                yield from _boolean_control(control, place, shown, name)


def _boolean_control(control: Any, place: str, kind: str, name: str) -> Iterator[Problem]:
    given = [each for each in _FALSE_TRUE if len(getattr(control, each))]
    if not given:
        yield Problem(place, f"sequence batching must specify either {_EITHER} for {kind} for {name}")
    elif len(given) > 1:
        yield Problem(place, f"sequence batching specifies more than one from {_BOTH} for {kind} for {name}")
    elif len(getattr(control, given[0])) != 2:
        text = f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} for {name}"
        yield Problem(f"{place}.{given[0]}", text)


def _corrid(control: Any, place: str, kind: str, name: str) -> Iterator[Problem]:
    if any(len(getattr(control, each)) for each in _FALSE_TRUE):
        yield Problem(place, f"sequence batching must not specify either {_EITHER} for {kind} for {name}")
    elif enum_name(pb().DataType, control.data_type) not in _CORRID_TYPES:
        allowed = ", ".join(_CORRID_TYPES[:-1]) + " and " + _CORRID_TYPES[-1]
        text = f"unexpected data type for control {kind} for {name}. Allowed data types are {allowed}"
        yield Problem(f"{place}.data_type", text)


# response cache, metrics


def _response_cache(message: Message) -> Iterator[Problem]:
    if not message.response_cache.enable:
        return
    intro = f"Response Cache does not currently support model {message.name} with"
    if message.HasField("sequence_batching"):
        text = f"{intro} sequence batching scheduler. Please disable the response cache."
        yield Problem("response_cache.enable", text)
    if message.model_transaction_policy.decoupled:
        text = f"{intro} 'decoupled' transaction policy. Please disable the response cache."
        yield Problem("response_cache.enable", text)


def _metrics(message: Message) -> Iterator[Problem]:
    for index, control in enumerate(message.model_metrics.metric_control):
        place = f"model_metrics.metric_control[{index}]"
        if not control.HasField("metric_identifier"):
            yield Problem(place, "metric control must specify 'metric_identifier'")
        elif not control.metric_identifier.family:
            yield Problem(f"{place}.metric_identifier.family", "metric identifier must specify non-empty 'family'")
        elif not control.HasField("histogram_options"):
            yield Problem(place, "metric control must specify 'histogram_options'")
        elif not control.histogram_options.buckets:
            text = "histogram options must specify non-empty 'buckets'"
            yield Problem(f"{place}.histogram_options.buckets", text)


_HISTOGRAMS = ("nv_inference_first_response_histogram_ms",)
"""The metrics whose buckets a model may choose (core ``metric_model_reporter.cc``)."""


def warnings(message: Message) -> Iterator[Problem]:
    """What Triton accepts with a warning in its log when a model is loaded; the texts are Triton's."""
    for index, control in enumerate(message.model_metrics.metric_control):
        family = control.metric_identifier.family
        if family not in _HISTOGRAMS:
            text = f"Metric family '{family}' in 'metric_identifier' is not a customizable metric in Triton core."
            yield Problem(f"model_metrics.metric_control[{index}].metric_identifier.family", text)


# instance groups


def counts_below_one(document: ConfigDocument, normalized: Message) -> Iterator[Problem]:
    """The counts that are written and are no number of instances: Triton takes its default for them, without a word.

    Args:
        document: the configuration as written.
        normalized: the same after ``complete_backend`` and ``normalize``, which has what is taken.
    """
    for index, (group, taken) in enumerate(
        zip(document.message.instance_group, normalized.instance_group, strict=False)
    ):
        path = f"instance_group[{index}].count"
        if group.count < 1 and document.locate(path) is not None:
            text = (
                f"{path} of model '{normalized.name}' is {group.count}: for a count below 1 Triton takes its default, "
                f"which is {taken.count} here"
            )
            yield Problem(path, text)


def instance_group_problems(
    message: Message, gpus: Sequence[int], min_compute_capability: float = MIN_COMPUTE_CAPABILITY
) -> Iterator[Problem]:
    """What Triton refuses about instance groups, after ``normalize``; ``gpus`` as there."""
    if not message.instance_group:
        yield Problem("instance_group", f"must specify one or more 'instance group's for {message.name}")
    for index, group in enumerate(message.instance_group):
        place = f"instance_group[{index}]"
        intro = f"instance group {group.name} of model {message.name}"
        kind = enum_name(pb().ModelInstanceGroup.Kind, group.kind)
        if kind in ("KIND_CPU", "KIND_MODEL"):
            if group.gpus:
                yield Problem(f"{place}.gpus", f"{intro} has kind {kind} but specifies one or more GPUs")
        elif kind == "KIND_GPU":
            yield from _gpu_group(group, gpus, intro, place, min_compute_capability)
        else:
            yield Problem(f"{place}.kind", f"{intro} has unexpected kind KIND_AUTO")


def _gpu_group(group: Any, gpus: Sequence[int], intro: str, place: str, minimum: float) -> Iterator[Problem]:
    if not group.gpus:
        text = "specifies no GPUs" if gpus else "no GPUs are available"
        yield Problem(f"{place}.kind", f"{intro} has kind KIND_GPU but {text}")
    for index, each in enumerate(group.gpus):
        if each not in gpus:
            known = ", ".join(str(gpu) for gpu in gpus)
            text = (
                f"{intro} specifies invalid or unsupported gpu id {each}. GPUs with at least the minimum required CUDA "
                f"compute compatibility of {minimum:.6f} are: {known}"
            )
            yield Problem(f"{place}.gpus[{index}]", text)
