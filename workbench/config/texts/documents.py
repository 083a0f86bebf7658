"""The linter of texts: a tutorial, an answer from a chat, a notebook, a model.py, a request, a manifest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from workbench.config.findings import Finding, LintContext, apply_fixes
from workbench.config.schema import Message
from workbench.config.texts import recognition
from workbench.config.texts.claims import check_claims
from workbench.config.texts.commands import check_docker, check_image, check_tritonserver, check_trtexec
from workbench.config.texts.examples import check_examples
from workbench.config.texts.fragments import check_config, check_message
from workbench.config.texts.load_tools import check_curl, check_perf_analyzer, check_urls
from workbench.config.texts.manifests import check_yaml
from workbench.config.texts.metric_names import check_metrics
from workbench.config.texts.notebooks import cells
from workbench.config.texts.python_client import check_client
from workbench.config.texts.python_model import check_model
from workbench.config.texts.requests import check_request_text
from workbench.config.texts.shell import commands
from workbench.config.texts.source import Kind, Notes, Passage, SourceFile
from workbench.config.texts.splitting import split
from workbench.config.texts.trees import check_tree

SUFFIXES = (".md", ".markdown", ".txt", ".rst", ".ipynb", ".py", ".json", ".yaml", ".yml", ".sh", ".prom")
"""Files that are linted as texts; ``Dockerfile`` is one, too."""


@dataclass(frozen=True, slots=True)
class TextContext:
    """What a text is judged for: the Triton release, and the configuration of the model that it belongs to."""

    triton_release: str = "25.03"
    config: Message | None = None


def is_text(name: str) -> bool:
    """Whether a file's name says that it is linted as a text."""
    return name.lower().endswith(SUFFIXES) or name.startswith("Dockerfile")


def lint_text(data: bytes, *, path: str, context: TextContext | None = None) -> list[Finding]:
    """Everything that Triton would refuse or ignore in a text, in the order of the file; never raises for the file.

    Lines and columns count characters from 1; a fix has replacements of the file's bytes, no edits.

    Args:
        data: the file.
        path: its name; the ending says what it is.
        context: what it is judged for.
    """
    source = SourceFile(data)
    context = context or TextContext()
    notes = Notes(source, LintContext(context.triton_release).release)
    linter = _Linter(notes, context)
    for passage in blocks(data, path=path):
        linter.check(passage, path)
    linter.finish()
    return notes.findings.sorted()


def blocks(data: bytes, *, path: str) -> list[Passage]:
    """The blocks of a file and the lines of prose between them (of kind ``other``), as they are linted."""
    source = SourceFile(data)
    name = path.rpartition("/")[2].lower()
    if name.endswith(".ipynb"):
        return _of_notebook(source)
    if name.endswith(".py"):
        return [Passage.whole(source, "model" if _is_model(path, source.text) else "python", path)]
    if name.endswith((".yaml", ".yml")):
        return [Passage.whole(source, "yaml", path)]
    if name.endswith(".sh"):
        return [Passage.whole(source, "command", path)]
    if name.endswith(".prom"):
        return [Passage.whole(source, "metrics", path)]
    if name.startswith("dockerfile"):
        return [Passage.whole(source, "dockerfile", path)]
    if name.endswith(".json"):
        return [Passage.whole(source, "request", path)]
    found = split(source, markdown=name.endswith((".md", ".markdown")))
    return sorted([*found.blocks, *found.prose], key=lambda each: each.line)


def fix_text(data: bytes, *, path: str, context: TextContext | None = None) -> tuple[bytes, list[Finding]]:
    """Applies fixes until none is left: the file, and the findings that remain."""
    findings = lint_text(data, path=path, context=context)
    for _ in range(20):
        mended = apply_fixes(data, findings)
        if mended == data:
            break
        data = mended
        findings = lint_text(data, path=path, context=context)
    return data, findings


def _is_model(path: str, text: str) -> bool:
    """Whether Python code is a model of the Python backend: by where it lies, or by what it uses."""
    *_, folder, name = ["", *path.split("/")]
    if name == "model.py" and (folder.isdecimal() or re.search(r"(?m)^\s*def execute\(", text)):
        return True
    return recognition.python_kind(text) == "model" and "class TritonPythonModel" in text


class _Linter:
    """One file: every block by its kind, then what several blocks say together."""

    def __init__(self, notes: Notes, context: TextContext) -> None:
        self.notes = notes
        self.context = context
        self.configs: list[Message] = [context.config] if context.config is not None else []
        self.later: list[Passage] = []

    def check(self, passage: Passage, path: str) -> None:
        """One block."""
        notes = self.notes
        if passage.kind == "config":
            message = check_config(passage, notes, LintContext(self.context.triton_release))
            if message is not None and message.name:
                self.configs.append(message)
        elif passage.kind in ("model", "python"):
            self._python(passage, path)
        elif passage.kind == "request":
            self._request(passage, path)
        elif passage.kind in ("command", "dockerfile"):
            self.later.append(passage)
        elif passage.kind == "tree":
            check_tree(passage, notes)
        elif passage.kind == "yaml":
            check_yaml(passage, notes)
        elif passage.kind == "message":
            check_message(passage, notes)
        else:
            check_metrics(passage, notes)
            if passage.kind == "other":
                check_claims(passage, notes)
        check_urls(passage, notes)

    def finish(self) -> None:
        """Commands, which may be about a model whose configuration stands elsewhere in the text."""
        for passage in self.later:
            if passage.kind == "dockerfile":
                check_image(passage, self.notes)
            else:
                self._commands(passage)

    def _python(self, passage: Passage, path: str) -> None:
        shown = Passage(
            passage.kind, _without_magics(passage.text), passage.places, passage.line, passage.prefix,
            passage.language, passage.path, passage.escaped,
        )  # fmt: skip
        tree = recognition.parse_python(shown.text)
        check_metrics(passage, self.notes)
        if tree is None:
            if path.endswith(".py"):
                self._syntax_error(passage)
            return
        name = path.rpartition("/")[2]
        if passage.kind == "model":
            whole = name == "model.py" or (passage.path.rpartition("/")[2] == "model.py" and "class" in passage.text)
            check_model(tree, shown, self.notes, self.context.config, file=whole)
        check_client(tree, shown, self.notes)

    def _syntax_error(self, passage: Passage) -> None:
        try:
            ast.parse(passage.text)
        except SyntaxError as error:
            lines = passage.text.split("\n")
            line = min(max(error.lineno or 1, 1), len(lines))
            start = sum(len(each) + 1 for each in lines[: line - 1])
            at = min(start + max((error.offset or 1) - 1, 0), len(passage.text))
            self.notes.say(passage, "python-syntax", (at, at), f"Python cannot read this: {error.msg}")
        except recognition.BEYOND_PARSING as error:
            why = str(error) or "it is nested too deeply"
            self.notes.say(passage, "python-syntax", (0, 0), f"Python cannot read this: {why}")

    def _request(self, passage: Passage, path: str) -> None:
        if path.endswith(".json"):
            if path.rpartition("/")[2] == "example_inputs.json" or re.match(r'\s*\{\s*"data"\s*:', passage.text):
                check_examples(passage, self.notes, self.context.config)
                return
            if not recognition.is_request(passage.text):
                return  # some other JSON
        check_request_text(passage, self.notes, self.context.config, file=path.endswith(".json"))

    def _commands(self, passage: Passage) -> None:
        notes = self.notes
        check_image(passage, notes)
        check_metrics(passage, notes)
        for command in commands(passage.text):
            program = command.program
            if program == "tritonserver":
                check_tritonserver(command, passage, notes)
            elif program in ("docker", "nvidia-docker"):
                check_docker(command, passage, notes)
            elif program == "trtexec":
                check_trtexec(command, passage, notes)
            elif program in ("perf_analyzer", "perf_client"):
                check_perf_analyzer(command, passage, notes, self.configs)
            elif program == "curl":
                check_curl(command, passage, notes)


_MAGIC = re.compile(r"(?m)^([ \t]*)[%!?].*$")


def _without_magics(text: str) -> str:
    """Python code with IPython's magics turned into ``pass`` of the same length."""
    return _MAGIC.sub(lambda match: (match.group(1) + "pass").ljust(len(match.group()))[: len(match.group())], text)


def _of_notebook(source: SourceFile) -> list[Passage]:
    out: list[Passage] = []
    for cell in cells(source):
        if cell.kind == "markdown":
            inner = split(SourceFile(cell.text.encode("utf-8", "surrogatepass")), markdown=True)
            found: Iterable[Passage] = sorted([*inner.blocks, *inner.prose], key=lambda each: each.line)
        else:
            found = _of_code(cell.text)
        for passage in found:
            passage.places = [cell.places[place] for place in passage.places]
            passage.escaped = True
            passage.line = source.at(passage.places[0])[0]
            out.append(passage)
    return out


_CELL_MAGIC = re.compile(r"%%(?P<name>\w+)(?P<rest>[^\n]*)\n?")


def _of_code(text: str) -> list[Passage]:
    """A code cell: Python with shell lines, or what its magic makes of it."""
    whole = Passage("python", text, range(len(text) + 1), 1)
    magic = _CELL_MAGIC.match(text)
    if magic is not None:
        kind = _magic_kind(magic["name"], magic["rest"].strip(), text[magic.end() :])
        body = whole.part(magic.end(), len(text), kind)
        body.path = magic["rest"].split()[-1] if magic["name"] == "writefile" and magic["rest"].split() else ""
        return [body]
    whole.kind = recognition.python_kind(text)
    shells = [
        whole.part(match.end(), _line_end(text, match.end()), "command") for match in re.finditer(r"(?m)^\s*!", text)
    ]
    return [whole, *shells]


def _magic_kind(name: str, rest: str, body: str) -> Kind:
    if name in ("bash", "sh", "script"):
        return "command"
    if name != "writefile":
        return "other"
    if rest.endswith(".pbtxt"):
        return "config"
    if rest.endswith(".py"):
        return recognition.python_kind(body)
    if rest.endswith((".yaml", ".yml")):
        return "yaml"
    return "request" if rest.endswith(".json") and recognition.is_request(body) else "other"


def _line_end(text: str, at: int) -> int:
    end = at
    while True:
        end = text.find("\n", end)
        if end < 0:
            return len(text)
        if not text[at:end].rstrip().endswith("\\"):
            return end
        end += 1
