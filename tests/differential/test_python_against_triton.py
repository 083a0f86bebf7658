"""What model.py files get from ``triton_python_backend_utils`` and how they may answer, on both sides."""

from __future__ import annotations

import re
import urllib.request

import python_models
from harness import HEAVY, Case, Sides, Talk, Topic, as_success, at_rest

pytestmark = HEAVY
TOPIC = Topic("py", "Python models")
case = TOPIC.case
build = python_models.build


def each(talk: Talk, *names: str, beside: tuple[str, ...] = ()) -> None:
    """Asks each of these models once, and notes what they and those beside them have counted."""
    for name in (*beside, *names):
        talk.load(name)
    for name in names:
        talk.infer(name, id="rid", str="a", int=3, bool=True, timeout=1_000_000)
    for name in (*names, *beside):
        talk.stats(name)


@case("py-01 what the module has: arguments, constants, numbers, names")
def module(talk: Talk) -> None:
    each(talk, "arguments", "directory", "constants", "inner", "numbers", "strings", "by_name", "serialize")


@case("py-02 tensors")
def tensors(talk: Talk) -> None:
    each(talk, "tensor", "dtypes", "tensor_wrong", "texts", "order", "shared")


@case("py-03 DLPack")
def dlpack(talk: Talk) -> None:
    each(talk, "dlpack", "dlpack_types", "dlpack_wrong")


@case("py-04 errors and responses")
def responses(talk: Talk) -> None:
    each(talk, "error", "error_wrong", "response", "response_wrong")


@case("py-05 each code of an error", differs=as_success(*[f"code_{code.lower()}" for code in python_models.CODES]))
def codes(talk: Talk) -> None:
    each(talk, *[f"code_{code.lower()}" for code in python_models.CODES])


@case("py-06 requests, received and made")
def requests(talk: Talk) -> None:
    each(talk, "request", "made", "made_wrong", "parameters", "memory", "flags", "sender_wrong")
    talk.infer("request", id="", outputs=["OUT"], sequence_id=7, sequence_start=True, sequence_end=True, priority=2)


@case("py-07 ways to answer", differs=as_success("tells"))
def answers(talk: Talk) -> None:
    each(talk, "waits_for_it", "static", "bare", "says_none", "says_late", "prunes", "tells", "model_exception")


@case("py-08 nested requests")
def nested(talk: Talk) -> None:
    each(talk, "exec", "exec_none", "exec_async", "positional", "threads", "deep", beside=("echo",))


@case("py-09 nested requests that fail", differs=as_success("refusing"))
def nested_failing(talk: Talk) -> None:
    each(talk, "exec_failing", beside=("echo", "raising", "refusing", "many"))


@case("py-10 nested requests with any number of responses")
def streams(talk: Talk) -> None:
    beside = ("echo", "raising", "many", "none")
    each(talk, "stream", "stream_half", "stream_one", "stream_async", beside=beside)


@case("py-11 the fields of a nested request arrive")
def fields(talk: Talk) -> None:
    each(talk, "fields_through", beside=("fields",))


@case("py-12 the log")
def log(talk: Talk) -> None:
    each(talk, "log", "log_wrong")


KEPT = "2.51 keeps the metrics of a model that is gone where its finalize did not delete them; here they go with it"


@case("py-13 metrics of a model's own are on the page", differs={"page after the model": KEPT})
def metrics(talk: Talk) -> None:
    def page() -> list[str]:
        with urllib.request.urlopen(talk.side.at.metrics, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sorted(line for line in lines if re.match("(# [A-Z]+ )?py_", line))

    each(talk, "counts", "metric_wrong")
    talk.note("page", page())
    talk.infer("counts")
    talk.note("page after another", page())
    talk.unload("counts")
    talk.note("page after the model", at_rest(page))


@case("py-17 metrics that finalize deletes leave the page")
def tidy_metrics(talk: Talk) -> None:
    def rows() -> int:
        with urllib.request.urlopen(talk.side.at.metrics, timeout=60) as answer:
            return answer.read().decode().count("\npy_tidy_")

    each(talk, "counts_tidy")
    talk.note("rows", rows())
    talk.unload("counts_tidy")
    talk.note("rows after the model", at_rest(rows))


@case("py-14 models load and unload others")
def loading(talk: Talk) -> None:
    each(talk, "loading", "loading_wrong", "loading_changed")


@case("py-15 the configuration in the making")
def config(talk: Talk) -> None:
    each(talk, "config", "config_wrong")


@case("py-16 files that cannot be loaded; a finalize that raises")
def refused(talk: Talk) -> None:
    for name in ("import_raises", "import_missing", "no_class", "initialize_raises"):
        talk.load(name)
    each(talk, "ends")
    talk.unload("ends")
    talk.infer("ends")


NOT_ASKED = "Triton asks a model for its is_ready since 26.03: in 2.51 it is ready as soon as it is loaded"


@case("py-30 models that say whether they are ready", differs={"GET /v2/models/is_not_ready/ready": NOT_ASKED})
def readiness(talk: Talk) -> None:
    each(talk, "is_ready", "is_not_ready")
    talk.call("GET", "/v2/models/is_ready/ready")
    talk.call("GET", "/v2/models/is_not_ready/ready")


def test_there_are_sixty_files_at_least() -> None:
    assert len(python_models.SAYING) + len(python_models.WHOLE) >= 60


LATER = "a response's parameters (25.01) and the cancelling of a stream (25.04) are there already"


NO_NUMBER = "2.51 raises a TypeError: it cannot hand its number of a data type to Python"


@case(
    "py-18 all names of the module and its classes",
    differs={"surface_later/infer": LATER, "dtype_numbers/infer": NO_NUMBER},
)
def surface(talk: Talk) -> None:
    each(talk, "surface", "surface_later", "dtype_numbers")


@case(
    "py-19 what a request says of itself arrives: parameters of every type, sequences, priority, outputs",
    differs={'"tiny"': "exponents of numbers in parameters are written 1e-09, in 2.51 1e-9"},
)
def told(talk: Talk) -> None:
    talk.load("told")
    talk.infer("told", id="", priority=3, timeout=5)
    talk.infer("told", id="é", text='é\n"', empty="", large=2**62, least=-(2**63), no=False)
    talk.infer("told", half=2.5, whole=2.0)
    talk.infer("told", tiny=1e-9)
    talk.infer("told", sequence_id=2**64 - 1, sequence_start=True)
    talk.infer("told", sequence_id=5, sequence_end=True, outputs=["OUT"])
    talk.infer("told", sequence_id=0, sequence_start=True, sequence_end=True)
    talk.infer("told", priority=2**40, binary_data_output=False)
    talk.infer("told", triton_mine=1)
    talk.infer("told", timeout=-1)
    talk.stats("told")


@TOPIC.each_case
def test_case(each: Case, sides: Sides) -> None:
    sides.compare(each)
