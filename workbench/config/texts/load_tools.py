"""Commands that ask a server: perf_analyzer, curl; and the server's URLs in any passage."""

from __future__ import annotations

import re
from collections.abc import Iterable

from workbench.config.schema import Message
from workbench.config.texts import option_tables as tables
from workbench.config.texts.requests import check_request_text
from workbench.config.texts.shell import Command, Option, Word, options
from workbench.config.texts.source import Notes, Passage, did_you_mean

# perf_analyzer


def check_perf_analyzer(command: Command, passage: Passage, notes: Notes, configs: Iterable[Message]) -> None:
    """perf_analyzer's options; with the model's configuration also what it cannot guess of the inputs."""
    found = options(command.words[1:], tables.PERF_ANALYZER_FLAGS)
    by_name: dict[str, Option] = {}
    for each in found:
        by_name.setdefault(each.name, each)
        dashes = len(each.word.text) - len(each.word.text.lstrip("-"))
        if dashes == 1 or each.name in tables.PERF_ANALYZER or tables.abbreviates(each.name, tables.PERF_ANALYZER):
            continue
        more, best = did_you_mean(each.name, [name for name in tables.PERF_ANALYZER if len(name) > 1])
        changes = [(*each.name_span, f"--{best}")] if best else ()
        text = f"perf_analyzer has no option --{each.name}{more}"
        notes.say(passage, "perf-option", each.name_span, text, f"Write --{best}" if best else "", changes)
    if by_name.keys() & {"help", "h", "version"}:
        return
    if "concurrency-range" in by_name and "request-rate-range" in by_name:
        text = "cannot use concurrency-range and request-rate-range at the same time"
        notes.say(passage, "perf-option", by_name["request-rate-range"].span, text)
    for name in ("concurrency-range", "request-rate-range"):
        given = by_name.get(name)
        value = (given.value or "") if given is not None and given.literal else ""
        if given is not None and re.match(r"[0-9]", value) and not re.fullmatch(r"[0-9.]+(?::[0-9.]+){0,2}", value):
            number = re.match(r"[0-9.]+", value)
            read = number.group() if number is not None else value
            text = f"--{name} is START:END:STEP: of {value} perf_analyzer reads {read} and silently drops the rest"
            notes.say(passage, "perf-option", given.span, text, severity="warning")
    _protocol(by_name, passage, notes)
    model = by_name["m"].value if "m" in by_name else None
    for config in configs:
        if config.name and config.name == model:
            _variable_inputs(config, by_name, command, passage, notes)


def _protocol(by_name: dict[str, Option], passage: Passage, notes: Notes) -> None:
    protocol, url = by_name.get("i"), by_name.get("u")
    if protocol is not None and protocol.literal and protocol.value and protocol.value.lower() not in ("http", "grpc"):
        notes.say(passage, "perf-option", protocol.span, f"-i is http or grpc, got {protocol.value}")
    if url is None or url.value is None:
        return
    grpc = protocol is not None and (protocol.value or "").lower() == "grpc"
    wrong = re.search(r":(8000|8001)(?=/|$)", url.value)
    if wrong is not None and (wrong.group(1) == "8000") == grpc:
        said = "-i grpc" if grpc else "HTTP (the default of -i)"
        text = f"{said} with port {wrong.group(1)}: Triton's own ports are 8000 for HTTP and 8001 for gRPC"
        notes.say(passage, "wrong-port", url.span, text)


def _variable_inputs(
    config: Message, by_name: dict[str, Option], command: Command, passage: Passage, notes: Notes
) -> None:
    if by_name.keys() & {"shape", "input-data", "data-directory"}:
        return
    names = [each.name for each in config.input if -1 in each.dims and not each.HasField("reshape")]
    if names:
        shapes = " ".join(f"--shape {name}:N" for name in names)
        text = (
            f"input {names[0]} contains dynamic shape, provide shapes to send along with the request: {shapes}, or "
            "real inputs with --input-data FILE"
        )
        notes.say(passage, "perf-shape", command.span, text)


# curl


def check_curl(command: Command, passage: Passage, notes: Notes) -> None:
    """curl's method for an endpoint of Triton, and the request that it sends."""
    posts = False
    method = ""
    for index, word in enumerate(command.words[1:], 1):
        if re.match(r"(?:-d|--data(?:-binary|-raw|-ascii)?|--json|-F|-T)(?:$|=|[^-a-zA-Z])", word.text):
            posts = True
        following = command.words[index + 1].text if index + 1 < len(command.words) else ""
        if word.text in ("-X", "--request"):
            method = following.upper()
        elif word.text.startswith("-X"):
            method = word.text[2:].upper()
        if word.text in ("-I", "--head"):
            method = "HEAD"
    method = method or ("POST" if posts else "GET")
    for word in command.words[1:]:
        match = re.match(r"(?:https?://)?[^/\s]*(?::[0-9]+)?(/v2(?:/[^\s?]*)?)$", word.text)
        if match is not None and word.literal:
            _method(method, match.group(1), (command.words[0].end, word), passage, notes)
        if word.text.lstrip().startswith("{") and passage.text[word.start] == "'" and word.literal:
            check_request_body(passage, word.start + 1, word.end - 1, notes)


def check_request_body(passage: Passage, start: int, end: int, notes: Notes) -> None:
    """JSON inside of a passage: checked where it is an inference request."""
    part = passage.part(start, end, "request")
    if '"inputs"' in part.text:
        check_request_text(part, notes)


_POST_ONLY = re.compile(
    r"/v2/repository(?:/[^/]+)?/index|/v2/repository/models/[^/]+/(?:load|unload)"
    r"|/v2/models/[^/]+(?:/versions/[^/]+)?/(?:infer|generate|generate_stream)"
)
_GET_ONLY = re.compile(
    r"/v2|/v2/health/(?:live|ready)|/v2/models/[^/]+(?:/versions/[^/]+)?(?:/(?:ready|config|stats))?|/v2/models/stats"
)


def _method(method: str, path: str, place: tuple[int, Word], passage: Passage, notes: Notes) -> None:
    at, word = place
    if method in ("GET", "HEAD") and _POST_ONLY.fullmatch(path):
        text = f"{path} is asked with POST (curl -X POST): GET is answered 405 Method Not Allowed"
        notes.say(passage, "wrong-method", word.span, text, "Add -X POST", [(at, at, " -X POST")])
    elif method == "POST" and _GET_ONLY.fullmatch(path):
        notes.say(
            passage, "wrong-method", word.span, f"{path} is asked with GET: POST is answered 405 Method Not Allowed"
        )


# URLs

_PART = r"(?:[^/\s\"'`?]+)"
_ENDPOINT = re.compile(
    rf"/v2(?:|/health/(?:live|ready)|/models/stats|/models/{_PART}(?:/versions/{_PART})?"
    rf"(?:/(?:ready|config|stats|infer|generate|generate_stream))?|/models/{_PART}/trace/setting|/trace/setting|/logging"
    rf"|/repository(?:/{_PART})?/index|/repository(?:/{_PART})?/models/{_PART}/(?:load|unload)"
    rf"|/(?:system|cuda)sharedmemory(?:/region/{_PART})?/(?:status|register|unregister)|/workbench(?:/.*)?)"
)
_URL = re.compile(
    r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0|:80[0-9]{2}|(?<=[\s\"'`(]))[\w.:$@{}<>-]*(?P<path>/v2/[A-Za-z0-9_.~:/{}$<>@%+*…-]+)"
)
_LAST = ("ready", "config", "stats", "infer", "generate", "generate_stream", "load", "unload", "index", "live")
_METRICS = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0|https?://[\w.-]+):(8000|8001)/metrics\b")


def check_urls(passage: Passage, notes: Notes) -> None:
    """Addresses of the v2 protocol in a passage that Triton does not have."""
    for match in _URL.finditer(passage.text):
        path = match["path"].rstrip(".:*")
        if passage.text[match.end() : match.end() + 1] in ("[", "("):
            continue  # a grammar of addresses
        if (
            _ENDPOINT.fullmatch(path)
            or path.endswith("/")
            or "..." in path
            or "…" in path
            or "*" in path
            or re.search(r"[{$<]", path.rpartition("/")[2])
        ):
            continue
        if re.search(r"/v2/(?:_catalog|[\w-]+/(?:manifests|tags|blobs))", path) or not re.match(
            r"/v2/(?:models|health|repository|trace|logging|system|cuda|predict|infer|ready|live)", path
        ):
            continue
        last = path.rpartition("/")[2]
        best = did_you_mean(last, _LAST, 0.75)[1]
        if best is None and last in ("predict", "inference", "invoke", "predictions"):
            best = "infer"
        start = match.start("path")
        span = (start, start + len(path))
        fixed = path[: len(path) - len(last)] + best if best else ""
        text = f"Triton has no {path} (404)"
        if fixed and _ENDPOINT.fullmatch(fixed):
            changes = [(span[1] - len(last), span[1], best or "")]
            notes.say(passage, "unknown-endpoint", span, f"{text}; did you mean {fixed}?", f"Write {best}", changes)
        else:
            notes.say(passage, "unknown-endpoint", span, text)
    for match in _METRICS.finditer(passage.text):
        text = f"metrics are on a port of their own, 8002; port {match.group(1)} answers 404"
        notes.say(passage, "metrics-port", match.span(), text, "Write 8002", [(*match.span(1), "8002")])
