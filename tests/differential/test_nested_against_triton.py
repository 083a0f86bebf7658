"""Nested requests (BLS): timeouts, cancellation, models of every kind, every field, on both sides."""

from __future__ import annotations

import threading

import nested_models
from harness import HEAVY, Case, Sides, Talk, Topic, said_in_file

pytestmark = HEAVY
TOPIC = Topic("bls", "Nested requests")
case = TOPIC.case
build = nested_models.build


def asks(talk: Talk, *names: str, beside: tuple[str, ...] = ()) -> None:
    """Asks each of these models once; what those beside them have counted is noted too."""
    for name in (*beside, *names):
        talk.load(name)
    for name in names:
        talk.infer(name)
    for name in beside:
        talk.stats(name)


@case("bls-01 a timeout in the callee's queue: of the request, or of the queue where it is smaller or not overridden")
def timeouts(talk: Talk) -> None:
    for name in ("overridable", "stubborn", "ask_queued"):
        talk.load(name)
    held = [talk.hold(name, "hold") for name in ("overridable", "stubborn")]
    sent = talk.send("ask_queued")
    threading.Event().wait(1.0)  # 2.51 answers what is too late only when the instance is free
    talk.release(*held)
    talk.answers(sent, *held)
    for name in ("overridable", "stubborn"):
        talk.stats(name)


@case("bls-02 a timeout says nothing to a queue without a policy, or to a model without a queue")
def no_policy(talk: Talk) -> None:
    for name in ("patient", "unbatched", "ask_patient"):
        talk.load(name)
    held = [talk.hold(name, "hold") for name in ("patient", "unbatched")]
    sent = talk.send("ask_patient")
    for name in ("patient", "unbatched"):
        talk.until(lambda name=name: talk.pending(name) == 1, "nothing waits")
    talk.release(*held)
    talk.answers(sent)
    for name in ("patient", "unbatched"):
        talk.stats(name)


@case("bls-03 a full queue refuses a nested request")
def full(talk: Talk) -> None:
    for name in ("narrow", "ask_full"):
        talk.load(name)
    held = talk.hold("narrow", "hold")
    waiting = talk.queue("narrow", talk.body(id="first"))
    talk.infer("ask_full")
    talk.release(held)
    talk.answers(held, *waiting)
    talk.stats("narrow")


@case("bls-04 the client goes while a nested request runs: the model is told, the nested request ends")
def left(talk: Talk) -> None:
    talk.leavers = ("gone",)
    for name in ("unbatched", "ask_left"):
        talk.load(name)
    held = talk.hold("unbatched", "hold")
    sent = talk.send("ask_left", talk.body(id="gone"))
    talk.until((talk.root / "ask_left.begun").exists, "it does not run")
    talk.until(lambda: talk.pending("unbatched") == 1, "it does not ask")
    (talk.root / "ask_left.begun").unlink()
    sent.leave()
    talk.release(held)
    talk.answers(sent)
    said_in_file(talk, "ask_left.ended")
    talk.batches("unbatched")
    talk.stats("unbatched")


@case("bls-05 asyncio cancels what awaits: the nested request runs on")
def cancelled(talk: Talk) -> None:
    asks(talk, "ask_cancelled", beside=("unbatched", "echo"))
    talk.batches("unbatched")


@case("bls-06 a stream that nobody reads to its end")
def broken_off(talk: Talk) -> None:
    for name in ("counted", "many", "echo", "ask_broken_off", "ask_untouched", "ask_two_streams"):
        talk.load(name)
    talk.infer("ask_broken_off")
    said_in_file(talk, "counted.seen")
    for name in ("ask_untouched", "ask_two_streams"):
        talk.infer(name)
    # Not of ``counted``: a stream that is dropped before it has begun is cancelled here, and runs on in 2.51.
    talk.stats("many")


@case(
    "bls-07 an ensemble, of which a step raises, or is decoupled",
    differs={
        "chain_raising/1 fail": "2.51 counts the failure of an ensemble twice",
    },
)
def ensembles(talk: Talk) -> None:
    for name in ("echo", "raising", "many", "chain", "chain_raising", "chain_many"):
        talk.load(name)
    asks(talk, "ask_ensemble", "ask_stream_ensemble")
    for name in ("echo", "raising", "many", "chain", "chain_raising"):
        talk.stats(name)


@case("bls-08 a sequence: id and flags arrive, and control its inputs")
def sequences(talk: Talk) -> None:
    asks(talk, "ask_sequence", "ask_flags_set", beside=("tells_sequence",))
    asks(talk, "ask_sequence_in_string", beside=("tells_string",))


@case("bls-09 another version of the model itself")
def versions(talk: Talk) -> None:
    talk.load("versions")
    talk.infer("versions")
    for version in "12":
        talk.call("POST", f"/v2/models/versions/versions/{version}/infer", talk.body())
        talk.stats("versions", version)


@case("bls-10 models that are not there, were not loaded, could not be, or are gone")
def nobody(talk: Talk) -> None:
    talk.load("broken")
    asks(talk, "ask_nobody")
    talk.load("at_home")
    talk.unload("at_home")
    talk.infer("ask_nobody")


@case(
    "bls-11 what does not fit the callee is refused in its words",
    differs={"ask_extra": "2.51 lists the inputs that came in the order of a hash table, here it is theirs"},
)
def wrong(talk: Talk) -> None:
    asks(talk, "ask_wrong", "ask_extra", beside=("echo",))


@case("bls-12 one of two outputs, both, all; large tensors, texts")
def tensors(talk: Talk) -> None:
    asks(talk, "ask_two_outputs", "ask_large", "ask_texts", beside=("two", "echo", "texts"))


@case("bls-13 every field of a request arrives")
def fields(talk: Talk) -> None:
    asks(talk, "ask_fields", "ask_parameters", "ask_again", beside=("tells",))


@case("bls-14 coroutines: gathered requests, gathered nested requests, one that raises, one that gives no list")
def coroutines(talk: Talk) -> None:
    asks(talk, "gathers", "coroutine_raises", "coroutine_wrong", beside=("echo",))
    for name in ("gathers", "coroutine_raises"):
        talk.stats(name)


@case("bls-15 in initialize and in finalize")
def before_and_after(talk: Talk) -> None:
    talk.load("echo")
    talk.load("initializing")
    talk.load("finalizing")
    talk.unload("finalizing")
    said_in_file(talk, "finalizing.said")


@case("bls-16 sixteen at once; a correlation id that is a string")
def at_once(talk: Talk) -> None:
    asks(talk, "ask_many_threads", "ask_string_id", beside=("echo", "tells"))


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
