"""Commands that start Triton or build what it serves: tritonserver, docker, trtexec."""

from __future__ import annotations

import re

from workbench.config.texts import option_tables as tables
from workbench.config.texts.shell import Command, Option, Word, commands, options
from workbench.config.texts.source import Change, Notes, Passage, did_you_mean, line_span

_TRUE_FALSE = ("true", "false", "1", "0")


def check_tritonserver(command: Command, passage: Passage, notes: Notes, *, whole: bool = True) -> None:
    """tritonserver's options; ``whole`` is false where only some of them are seen."""
    found = options(command.words[1:])
    by_name: dict[str, list[Option]] = {}
    for each in found:
        by_name.setdefault(each.name, []).append(each)
        _option(each, passage, notes)
    if "help" in by_name:
        return
    mode = by_name["model-control-mode"][-1] if "model-control-mode" in by_name else None
    _models(by_name, mode, passage, notes)
    limited = any(each.value == "execution_count" or not each.literal for each in by_name.get("rate-limit", ()))
    for each in by_name.get("rate-limit-resource", ()) if not limited else ():
        text = "rate-limit-resource does nothing without --rate-limit=execution_count"
        notes.say(passage, "server-option-ignored", each.span, text)
    if whole:
        _missing_backslash(command, passage, notes)


def _option(each: Option, passage: Passage, notes: Notes) -> None:
    name = each.name
    if name not in tables.TRITONSERVER:
        if tables.abbreviates(name, tables.TRITONSERVER):
            return
        more, best = did_you_mean(name, tables.TRITONSERVER)
        changes = [(*each.name_span, f"--{best}")] if best else []
        text = f"tritonserver has no option --{name}{more}"
        notes.say(passage, "server-option", each.name_span, text, f"Write --{best}" if best else "", changes)
        return
    since = tables.TRITONSERVER_SINCE.get(name)
    if since is not None and (0, 0) < notes.release < since:
        text = f"tritonserver knows --{name} since {since[0]}.{since[1]:02d} and does not start with it before"
        notes.say(passage, "server-option", each.name_span, text)
    if name in tables.TRITONSERVER_OLD:
        _old(each, passage, notes)
    value = each.value
    if value is None or not each.literal or re.search(r"[<>{}]|\.\.\.", value):
        return
    if name in tables.TRITONSERVER_BOOL and value.lower() not in _TRUE_FALSE:
        notes.say(passage, "server-option-value", each.span, f"invalid value for bool option --{name}: {value}")
    elif name in tables.TRITONSERVER_NUMBER and not re.fullmatch(r"-?[0-9]+(?:\.[0-9]+)?", value):
        if re.fullmatch(r"[A-Z_]+", value):
            return
        notes.say(passage, "server-option-value", each.span, f"--{name} wants a number, got {value}")
    elif name in tables.TRITONSERVER_CHOICES and value not in tables.TRITONSERVER_CHOICES[name]:
        if re.fullmatch(r"[A-Z_]{4,}", value) or "|" in value:
            return
        choices = tables.TRITONSERVER_CHOICES[name]
        more, best = did_you_mean(value, choices, 0.6)
        text = f"--{name} is one of {', '.join(choices)}, got {value}{more}"
        at = each.span[1] - len(value)
        fit = best is not None and passage.text[at : each.span[1]] == value
        notes.say(
            passage,
            "server-option-value",
            each.span,
            text,
            f"Write {best}" if fit else "",
            [(at, each.span[1], best or "")] if fit else (),
        )


def _old(each: Option, passage: Passage, notes: Notes) -> None:
    new = tables.TRITONSERVER_OLD[each.name]
    text = f"--{each.name} is deprecated: {new}"
    if each.name == "strict-model-config":
        if each.value is None or each.value.lower() not in ("true", "1", "false", "0"):
            return
        if each.value.lower() in ("false", "0"):
            text = "--strict-model-config is deprecated, and false is the default: leave it out"
            notes.say(passage, "server-option-old", each.span, text)
            return
        notes.say(passage, "server-option-old", each.span, text, f"Write {new}", [(*each.span, new)])
    elif each.name == "response-cache-byte-size" and each.value is not None and each.value.isdecimal():
        new = new.replace("BYTES", each.value)
        notes.say(
            passage,
            "server-option-old",
            each.span,
            f"--{each.name} is deprecated: {new}",
            f"Write {new}",
            [(*each.span, new)],
        )
    else:
        notes.say(passage, "server-option-old", each.span, text)


def _models(by_name: dict[str, list[Option]], mode: Option | None, passage: Passage, notes: Notes) -> None:
    loads = by_name.get("load-model", [])
    told = mode is None or mode.literal
    if loads and told and (mode is None or mode.value != "explicit"):
        text = "--load-model needs --model-control-mode=explicit: in the modes none and poll every model is loaded"
        changes: list[Change]
        if mode is None:
            changes = [(loads[0].word.start, loads[0].word.start, "--model-control-mode=explicit ")]
            notes.say(passage, "server-load-model", loads[0].span, text, "Add --model-control-mode=explicit", changes)
        else:
            notes.say(passage, "server-load-model", loads[0].span, text)
    if len(loads) > 1 and any(each.value == "*" for each in loads):
        text = "Wildcard model name '*' must be the ONLY startup model if specified at all."
        notes.say(passage, "server-load-model", loads[0].span, text)
    for each in by_name.get("repository-poll-secs", ()):
        if told and (mode is None or mode.value in ("none", "explicit")):
            text = "--repository-poll-secs counts in mode poll only; the default mode is none: models are loaded once, "
            text += "at the start"
            if mode is None:
                changes = [(each.word.start, each.word.start, "--model-control-mode=poll ")]
                notes.say(passage, "server-option-ignored", each.span, text, "Add --model-control-mode=poll", changes)
            else:
                notes.say(passage, "server-option-ignored", each.span, text)


# line continuation


def _lines_behind(passage: Passage, command: Command) -> list[tuple[int, int]]:
    """The lines of options right behind a command's last line that it does not reach."""
    out: list[tuple[int, int]] = []
    at = line_span(passage.text, command.span[1])[1]
    while at < len(passage.text) and re.match(r"[ \t]*--[a-z]", passage.text[at:]):
        start, end = line_span(passage.text, at)
        out.append((start, end))
        at = end
    return out


def _missing_backslash(command: Command, passage: Passage, notes: Notes) -> None:
    lines = _lines_behind(passage, command)
    if not lines:
        return
    text = (
        "without \\ at its end a command ends with the line: tritonserver starts without the options below, and each "
        "of them is taken for a command of its own"
    )
    first = line_span(passage.text, command.span[1])
    comments: list[str] = []
    changes: list[Change] = []
    for number, (start, end) in enumerate([first, *lines]):
        line = passage.text[start:end].rstrip("\r\n")
        comment = re.search(r"\s*\\?\s+#.*$", line)
        if comment is not None:
            comments.append(re.sub(r"^\s*\\?\s*#\s*", "# ", comment.group()))
        kept = line[: comment.start()] if comment is not None else line.rstrip().removesuffix("\\").rstrip()
        last = number == len(lines)
        new = kept if last else f"{kept} \\"
        if new != line:
            changes.append((start, start + len(line), new))
    if comments:
        changes.insert(0, (first[0], first[0], "".join(f"{each}\n" for each in comments)))
        changes = _merged(changes)
    notes.say(passage, "shell-continuation", command.span, text, "End the lines with \\", changes)
    for start, end in lines:
        part = passage.part(start, end, "command")
        inner = [Command([Word("tritonserver", 0, 0), *each.words]) for each in commands(part.text)]
        for each in inner[:1]:
            check_tritonserver(each, part, notes, whole=False)


def _merged(changes: list[Change]) -> list[Change]:
    """An insertion and a change at one place as one change."""
    first, second, *rest = changes
    if first[1] == second[0]:
        return [(first[0], second[1], first[2] + second[2]), *rest]
    return changes


# docker

IMAGE = re.compile(r"nvcr\.io/nvidia/tritonserver(?::(?P<tag>[\w.-]+))?(?=[\s\"'@]|$)")
_RELEASE = re.compile(r"[0-9]{2}\.[0-9]{2}")
_VALUED = frozenset(
    str.split("""v volume p publish name gpus e env shm-size network net ipc ulimit w workdir u user device mount
    runtime
    entrypoint h hostname memory m cpus cpuset-cpus env-file label l restart add-host platform pid cap-add
    security-opt log-driver log-opt tmpfs""")
)


def check_image(passage: Passage, notes: Notes) -> None:
    """Names of Triton's image in a passage: its tags end in the kind of image, as in ``25.03-py3``."""
    for match in IMAGE.finditer(passage.text):
        tag = match["tag"]
        start, end = line_span(passage.text, match.start())
        bare = tag is None and re.search(r"^\s*FROM\s|\bdocker (?:run|pull)\b", passage.text[start:end])
        if bare or tag == "latest":
            text = "the registry has no tag latest for tritonserver: name a release, as in 25.03-py3"
            notes.say(passage, "image-tag", match.span(), text)
        elif tag is not None and _RELEASE.fullmatch(tag):
            text = f"there is no image tritonserver:{tag}: the tag ends in what it holds, as in {tag}-py3"
            notes.say(passage, "image-tag", match.span("tag"), text, "Add -py3", [(*match.span("tag"), f"{tag}-py3")])


def check_docker(command: Command, passage: Passage, notes: Notes) -> None:
    """``docker run`` with a tritonserver inside."""
    words = command.words
    if len(words) < 2 or words[1].text != "run":
        return
    mounts: list[str] = []
    index = 2
    while index < len(words) and words[index].text.startswith("-"):
        name, equals, value = words[index].text.lstrip("-").partition("=")
        short = not words[index].text.startswith("--")
        if short and name[:1] in ("v", "p", "e") and len(name) > 1 and not equals:
            name, value, equals = name[0], name[1:], "="
        if not equals and name in _VALUED and index + 1 < len(words):
            index += 1
            value = words[index].text
        if name in ("v", "volume"):
            mounts.append(value.split(":")[1] if value.count(":") else value)
        elif name == "mount":
            target = re.search(r"(?:target|destination|dst)=([^,]+)", value)
            mounts += [target.group(1)] if target is not None else []
        index += 1
    if index >= len(words):
        return
    stock = IMAGE.fullmatch(words[index].text)
    inner = command.from_word(index + 1)
    if not inner.words:
        return
    if stock is not None and inner.words[0].text.startswith("--"):
        text = f"the container has no program {inner.words[0].text}: tritonserver must stand behind the image"
        at = inner.words[0].start
        notes.say(passage, "docker-command", inner.words[0].span, text, "Add tritonserver", [(at, at, "tritonserver ")])
    elif inner.program == "tritonserver":
        check_tritonserver(inner, passage, notes)
        if stock is not None:
            _mounted(inner, mounts, passage, notes)


def _mounted(inner: Command, mounts: list[str], passage: Passage, notes: Notes) -> None:
    for each in options(inner.words[1:]):
        path = each.value or ""
        if each.name not in ("model-repository", "model-store") or not each.literal or not path.startswith("/"):
            continue
        roots = [mount.rstrip("/") for mount in mounts]
        if any("$" in mount for mount in mounts) or path.startswith(("/opt/tritonserver", "/tmp")):
            continue
        if not any(path.rstrip("/") == root or path.startswith(f"{root}/") for root in roots):
            where = f"mounted are {', '.join(mounts)}" if mounts else "nothing is mounted"
            text = f"the container has no {path}: {where} (-v HOST_DIRECTORY:{path})"
            notes.say(passage, "docker-mount", each.span, text)


# trtexec


def check_trtexec(command: Command, passage: Passage, notes: Notes) -> None:
    """trtexec's options: those that are gone, and shape ranges that no profile can have."""
    found = options(command.words[1:])
    for each in found:
        new = tables.TRTEXEC_REMOVED.get(each.name)
        if new is None or (0, 0) < notes.release < (24, 5):
            continue
        text = f"trtexec of TensorRT 10 (Triton 24.05 and later) has no --{each.name}: {new}"
        written = new
        if each.name == "workspace" and (each.value or "").isdecimal():
            written = f"--memPoolSize=workspace:{each.value}"
        fits = new.startswith("--") and "MIB" not in written
        span = each.span if each.name == "workspace" else each.name_span
        notes.say(
            passage,
            "trtexec-option",
            span,
            text,
            f"Write {written}" if fits else "",
            [(*span, written)] if fits else (),
        )
    _shapes(found, passage, notes)
    graph = next((each for each in found if each.name == "useCudaGraph"), None)
    if graph is not None and any(each.name == "saveEngine" for each in found):
        text = (
            "--useCudaGraph is for trtexec's own timing; the saved engine is the same without it. In Triton CUDA "
            "graphs are a setting of the model: optimization { cuda { graphs: true } }"
        )
        notes.say(passage, "trtexec-cuda-graph", graph.span, text)


def _shapes(found: list[Option], passage: Passage, notes: Notes) -> None:
    given = {each.name: each for each in found if each.name in ("minShapes", "optShapes", "maxShapes")}
    parsed = {name: _dims(each.value or "") for name, each in given.items() if each.literal}
    for low, high in (("minShapes", "optShapes"), ("optShapes", "maxShapes"), ("minShapes", "maxShapes")):
        if low not in parsed or high not in parsed:
            continue
        if parsed[low].keys() != parsed[high].keys():
            names = ", ".join(sorted(parsed[low].keys() ^ parsed[high].keys()))
            text = f"--{low} and --{high} must name the same inputs; only one of them has {names}"
            notes.say(passage, "trtexec-shapes", given[high].span, text)
            return
        for name, dims in parsed[low].items():
            other = parsed[high][name]
            if len(dims) != len(other) or any(a > b for a, b in zip(dims, other, strict=True)):
                text = f"{name}: {_shown(dims)} of --{low} does not fit under {_shown(other)} of --{high}"
                notes.say(passage, "trtexec-shapes", given[high].span, text)
                return


def _dims(text: str) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for part in text.split(","):
        name, _, dims = part.rpartition(":")
        if name and re.fullmatch(r"[0-9]{1,18}(?:x[0-9]{1,18})*", dims):
            out[name.strip("'\"")] = [int(each) for each in dims.split("x")]
    return out


def _shown(dims: list[int]) -> str:
    return "x".join(map(str, dims))
