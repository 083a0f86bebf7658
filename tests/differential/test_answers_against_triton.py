"""Ways to answer: what execute returns, senders, streams and exceptions, on both sides."""

from __future__ import annotations

import answer_models
from harness import HEAVY, Case, Sides, Talk, Topic, as_success, said_in_file

pytestmark = HEAVY
TOPIC = Topic("ans", "Ways to answer")
case = TOPIC.case
build = answer_models.build
SAID = ("sends_after_final", "sends_twice", "sends_final_alone", "streams_after_final")
"""Models that write what they were told."""


ANSWERED = "2.51 counts a request as failed that was answered before its batch failed"


def asks(talk: Talk, *names: str, counted: bool = True) -> None:
    """Asks each of these models once by ``infer``."""
    for name in names:
        talk.load(name)
        talk.infer(name, {"IN": [1, 2]})
        if name in SAID:
            said_in_file(talk, "said")
        if counted:
            talk.stats(name)


def streams(talk: Talk, *names: str) -> None:
    """Asks each of these models for its stream, and for one answer by ``generate``."""
    for name in names:
        talk.load(name)
        talk.call("POST", f"/v2/models/{name}/generate_stream", {"IN": [1, 2]})
        if name in SAID:
            said_in_file(talk, "said")
        talk.call("POST", f"/v2/models/{name}/generate", {"IN": [1, 2]})
        if name in SAID:
            said_in_file(talk, "said")
        talk.stats(name)


@case(
    "ans-01 what execute returns, none of it a list of as many responses",
    differs={"gives_generator/infer": "2.51 takes a generator for a coroutine, and says so in asyncio's words"},
)
def returns(talk: Talk) -> None:
    asks(talk, "gives_tuple", "gives_dict", "gives_text", "gives_bare", "gives_false", "gives_generator", "gives_two")
    asks(talk, "gives_empty")


@case("ans-02 what stands in the list")
def listed(talk: Talk) -> None:
    asks(talk, "gives_text_in_list", "gives_tensor_in_list", "gives_error_in_list")


@case("ans-03 outputs that are missing, unknown, there twice, of another type or shape")
def outputs(talk: Talk) -> None:
    asks(talk, "gives_no_outputs", "gives_unknown_output", "gives_outputs_twice")
    asks(talk, "gives_other_type", "gives_other_shape")


@case(
    "ans-04 errors with tensors, without a text, with a long one",
    differs=as_success("gives_error_and_tensors", "gives_empty_text", "gives_long_text"),
)
def errors(talk: Talk) -> None:
    asks(talk, "gives_error_and_tensors", "gives_empty_text", "gives_long_text")


@case("ans-05 senders of a model that answers once", differs=as_success("sends_error"))
def senders(talk: Talk) -> None:
    asks(talk, "sends_error", "sends_after_final", "sends_twice", "sends_final_alone", "sends_from_two")


@case("ans-06 senders on a thread and in a loop; None in the list for what was sent")
def elsewhere(talk: Talk) -> None:
    asks(talk, "sends_on_thread", "sends_from_loop", "sends_none_in_list")


@case("ans-07 exceptions of every kind")
def exceptions(talk: Talk) -> None:
    asks(talk, "raises_nothing", "raises_chained", "raises_deep", "raises_triton_error", "raises_not_ascii")
    asks(talk, "raises_stop", "raises_assertion")


@case("ans-08 streams: responses, the final one with or without tensors, none at all")
def ends(talk: Talk) -> None:
    streams(talk, "streams_three", "streams_last_final", "streams_nothing", "streams_one", "streams_after_final")


@case(
    "ans-09 errors in a stream",
    differs=as_success("streams_error", "streams_error_then_final", "streams_error_between"),
)
def broken(talk: Talk) -> None:
    streams(talk, "streams_error", "streams_error_then_final", "streams_error_between", "streams_raises")


@case(
    "ans-10 a decoupled model that returns a list",
    differs=dict.fromkeys(
        as_success("streams_list"), "2.51 counts a request as failed that was answered before its batch failed"
    ),
)
def stream_list(talk: Talk) -> None:
    streams(talk, "streams_list")


@case("ans-11 streams from other threads, after execute, by two senders, by a coroutine, long ones")
def threads(talk: Talk) -> None:
    streams(talk, "streams_on_threads", "streams_later", "streams_two_senders", "streams_awaiting", "streams_many")


@case("ans-12 outputs of a stream that are missing, unknown or of another type")
def stream_outputs(talk: Talk) -> None:
    streams(talk, "streams_empty_response", "streams_unknown_output", "streams_other_type")


@case(
    "ans-13 each code of an error in a stream",
    differs=as_success(*[f"streams_{code.lower()}" for code in answer_models.CODES]),
)
def codes(talk: Talk) -> None:
    streams(talk, *[f"streams_{code.lower()}" for code in answer_models.CODES])


@case("ans-14 exceptions behind an answer, and one that leaves")
def afterwards(talk: Talk) -> None:
    asks(talk, "raises_after_sent", "raises_exit", counted=False)


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
