"""Lint of batching, queues, priorities and instances: settings that Triton accepts and that do less than they say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.config.findings import Fix
from workbench.config.lint_checker import Checker, removal
from workbench.config.normalization import SEQUENCE_IDLE_DEFAULT_MICROSECONDS, default_count
from workbench.config.path import Edit
from workbench.config.schema import pb

_DYNAMIC = "dynamic_batching"
_STRATEGIES = ("direct", "oldest")
_DELAY = f"{_DYNAMIC}.max_queue_delay_microseconds"


def lint_batching(check: Checker) -> None:
    """Adds the findings of every rule below."""
    if check.message.HasField("dynamic_batching"):
        _batch_size(check)
        _preferred(check)
        _queues(check)
        _levels(check)
    _delay(check)
    _sequence(check)
    _instances(check)
    _openvino_rows(check)


def _batch_size(check: Checker) -> None:
    message = check.message
    settled = bool(message.input) and bool(message.output)  # else completion may set max_batch_size (9.6)
    if message.max_batch_size > 1 or (message.max_batch_size == 0 and not message.input):
        return
    if message.max_batch_size == 0 and settled:
        given = check.document.locate("max_batch_size") is not None
        text = f"max_batch_size is 0{'' if given else ' (not set)'}: dynamic_batching runs each request alone"
        check.say("batching-without-max", _DYNAMIC, text)
    if message.dynamic_batching.max_queue_delay_microseconds:
        text = (
            f"max_batch_size is {message.max_batch_size}: no batch can form, the delay does nothing but keep requests "
            "waiting"
        )
        check.say("delay-without-batching", _DELAY, text, removal(_DELAY, "Remove the delay"))


def _preferred(check: Checker) -> None:
    batching = check.message.dynamic_batching
    sizes = [size for size in batching.preferred_batch_size if 0 < size < check.message.max_batch_size]
    if sizes and not batching.max_queue_delay_microseconds:
        shown = ", ".join(map(str, batching.preferred_batch_size))
        text = (
            f"nothing waits for the preferred sizes {shown}: without max_queue_delay_microseconds a batch goes as soon "
            "as an instance is free"
        )
        check.say("preferred-without-delay", f"{_DYNAMIC}.preferred_batch_size", text)


def _delay(check: Checker) -> None:
    goal, message = check.context.latency_goal_ms, check.message
    batchers = [(_DYNAMIC, message.dynamic_batching)]
    batchers += [(f"sequence_batching.{kind}", getattr(message.sequence_batching, kind)) for kind in _STRATEGIES]
    for path, batcher in batchers:
        delay = batcher.max_queue_delay_microseconds
        if goal is not None and delay > goal * 1000:
            text = f"a request may wait {delay / 1000:g} ms for company, and the goal is {goal:g} ms for all of it"
            check.say("delay-above-goal", f"{path}.max_queue_delay_microseconds", text)


def _policies(check: Checker) -> Iterator[tuple[str, Any]]:
    """The queue policies that count, with their paths."""
    batching = check.message.dynamic_batching
    if batching.HasField("default_queue_policy"):
        yield f"{_DYNAMIC}.default_queue_policy", batching.default_queue_policy
    if batching.priority_levels:
        for level in sorted(batching.priority_queue_policy):
            yield f'{_DYNAMIC}.priority_queue_policy["{level}"]', batching.priority_queue_policy[level]


def _queues(check: Checker) -> None:
    batching = check.message.dynamic_batching
    delay = batching.max_queue_delay_microseconds
    reject = pb().ModelQueuePolicy.REJECT
    for path, policy in _policies(check):
        timeout = policy.default_timeout_microseconds
        if not timeout:
            _without_timeout(check, path, policy)
        elif timeout < delay:
            end = "refused" if policy.timeout_action == reject else "moved behind all others"
            text = f"requests are {end} after {timeout} µs, before the queue delay of {delay} µs is over"
            check.say("delay-above-timeout", f"{path}.default_timeout_microseconds", text)
        _queue_size(check, path, policy)


def _without_timeout(check: Checker, path: str, policy: Any) -> None:
    if policy.allow_timeout_override:
        where = f"{path}.allow_timeout_override"
        text = (
            "a request's timeout only shortens default_timeout_microseconds, which is 0 (none): allow_timeout_override "
            "has no effect"
        )
        check.say("timeout-without-effect", where, text)
    if policy.timeout_action == pb().ModelQueuePolicy.DELAY:
        text = "timeout_action has no effect: default_timeout_microseconds is 0 (none)"
        check.say("timeout-without-effect", f"{path}.timeout_action", text)


def _queue_size(check: Checker, path: str, policy: Any) -> None:
    batching, most = check.message.dynamic_batching, policy.max_queue_size
    too_large = [size for size in batching.preferred_batch_size if 0 < most < size <= check.message.max_batch_size]
    if too_large:
        text = (
            f"at most {most} requests wait, so the preferred size {min(too_large)} cannot form from requests of one row"
        )
        check.say("queue-below-preferred", f"{path}.max_queue_size", text)


def _levels(check: Checker) -> None:
    batching = check.message.dynamic_batching
    levels, policies = batching.priority_levels, set(batching.priority_queue_policy)
    if policies and not levels:
        path = f"{_DYNAMIC}.priority_queue_policy"
        zero = ", and level 0 does not exist" if 0 in policies else ""
        check.say(
            "priority-without-levels",
            path,
            f"priority_queue_policy is ignored without priority_levels{zero}",
            removal(path),
        )
        return
    all_their_own = bool(levels) and len(policies) == levels and policies == set(range(1, len(policies) + 1))
    if all_their_own and batching.HasField("default_queue_policy"):
        text = "each of the priority levels has a policy of its own: default_queue_policy is used by none"
        check.say("default-policy-unused", f"{_DYNAMIC}.default_queue_policy", text)


_SHORT_IDLE = 10_000
"""Microseconds that hardly a client needs as little as between two requests: seconds or milliseconds were meant."""


def _sequence(check: Checker) -> None:
    direct = check.message.sequence_batching.direct
    if direct.minimum_slot_utilization and not direct.max_queue_delay_microseconds:
        path = "sequence_batching.direct.minimum_slot_utilization"
        text = "minimum_slot_utilization has no effect: max_queue_delay_microseconds is 0, nothing waits"
        check.say("slot-utilization-without-delay", path, text)
    idle = check.message.sequence_batching.max_sequence_idle_microseconds
    if 0 < idle < _SHORT_IDLE:
        text = (
            f"a sequence is ended when its next request comes more than {idle / 1000:g} ms after the one before; the "
            f"unit is microseconds, the default is {SEQUENCE_IDLE_DEFAULT_MICROSECONDS}"
        )
        check.say("sequence-idle-short", "sequence_batching.max_sequence_idle_microseconds", text)


# instances


def _instances(check: Checker) -> None:
    kinds = pb().ModelInstanceGroup
    for index, group in enumerate(check.message.instance_group):
        path = f"instance_group[{index}]"
        if group.count < 1:
            _below_one(check, group, f"{path}.count")
        if len(group.gpus) > 1 and group.count > 1 and group.kind != kinds.KIND_CPU:
            total = group.count * len(group.gpus)
            text = f"count is for each GPU: {group.count} x {len(group.gpus)} GPUs are {total} instances"
            check.say("instance-count", f"{path}.count", text)
    _threads(check)


def _below_one(check: Checker, group: Any, path: str) -> None:
    """A count that is no number of instances: Triton takes its default for it."""
    kinds = pb().ModelInstanceGroup
    on_cpu, taken = default_count(check.backend, kinds.KIND_CPU), default_count(check.backend, group.kind)
    if not group.count and group.kind == kinds.KIND_CPU and on_cpu > 1:
        text = f"no count, or 0, is {on_cpu} instances on the CPU with this backend; write the number that is meant"
        check.say("instance-count", path, text)
    elif check.document.locate(path) is not None:
        open_kind = group.kind == kinds.KIND_AUTO and on_cpu != taken  # then it depends on the machine
        which = f"{taken}, or {on_cpu} on the CPU with this backend" if open_kind else str(taken)
        text = f"count is {group.count}: for one below 1 Triton takes its default, {which}"
        fix = Fix(f"Set count to {taken}", (Edit(path, "set", taken),))
        check.say("instance-count", path, text, None if open_kind else fix, "warning")


_THREADS = {
    "onnxruntime": ("intra_op_thread_count",),
    "pytorch": ("INTRA_OP_THREAD_COUNT",),
    "openvino": ("CPU_EXTENSION_THREADS", "NUM_THREADS", "INFERENCE_NUM_THREADS"),
    "tensorflow": ("TF_NUM_INTRA_THREADS",),
}
"""The parameter by which a backend is told its threads for each instance."""


def _threads(check: Checker) -> None:
    cores, message = check.context.cores, check.message
    if not cores:
        return
    kinds = pb().ModelInstanceGroup
    instances = sum(max(each.count, 1) for each in message.instance_group if each.kind != kinds.KIND_GPU) or 1
    given = False
    for name in dict.fromkeys((*_THREADS.get(check.backend, ()), *(n for names in _THREADS.values() for n in names))):
        if name not in message.parameters:
            continue
        given = True
        value = message.parameters[name].string_value.strip()
        threads = int(value) if value.isdecimal() and len(value) < 6 else 0
        if threads and threads * instances > cores:
            best = max(1, cores // instances)
            path = f'parameters["{name}"].string_value'
            text = f"{instances} instances x {threads} threads on {cores} cores: they take turns"
            fix = Fix(f"Set {name} to {best}", (Edit(path, "set", str(best)),)) if best < threads else None
            check.say("too-many-threads", path, text, fix)
    if not given and check.backend == "onnxruntime" and instances > 1 and cores > 1:
        best = max(1, cores // instances)
        text = f"{instances} instances, each with a thread for every core (there are {cores}): they take turns"
        value = {"string_value": str(best)}
        fix = Fix(f"Set intra_op_thread_count to {best}", (Edit('parameters["intra_op_thread_count"]', "set", value),))
        check.say("too-many-threads", "instance_group", text, fix)


# frameworks


def _openvino_rows(check: Checker) -> None:
    """Triton's OpenVINO backend fixes the batch to max_batch_size rows."""
    most, parameters = check.message.max_batch_size, check.message.parameters
    key = "ENABLE_BATCH_PADDING"
    padded = key in parameters and parameters[key].string_value.lower() == "yes"
    if check.backend != "openvino" or most < 2 or padded:
        return
    text = (
        f"the OpenVINO backend takes batches of exactly {most} rows and refuses all others, several requests in one "
        f"always; {key} fills them up, at the cost of a full batch each time"
    )
    fix = Fix(f"Set {key} to YES", (Edit(f'parameters["{key}"]', "set", {"string_value": "YES"}),))
    check.say("fixed-batch", "max_batch_size", text, fix)
