"""What a passage is: told from its words, or from the word behind a Markdown fence."""

from __future__ import annotations

import ast
import codeop
import json
import re
from collections.abc import Sequence
from itertools import takewhile

from workbench.config.schema import types
from workbench.config.texts.source import Kind

_COMMANDS = (
    r"tritonserver|perf_analyzer|perf_client|trtexec|genai-perf|model-analyzer|curl|wget|docker(?:-compose)?|nvidia-docker|"
    r"pip3?|python3?|kubectl|helm|watch|polygraphy|nvidia-smi|git|cp|mkdir|export|cd|ls|cat|apt(?:-get)?|workbench"
)
COMMAND = re.compile(
    rf"^\s*(?:\$ |> |# (?=tritonserver -))?(?:sudo +)?(?:[A-Z_][A-Z0-9_]*=\S+ +)*(?:/\S*/)?(?:{_COMMANDS})"
    r"(?=\s+(?:-|[\"'$./~:]|\S*[-/:.=_]|run\b|pull\b|build\b|exec\b|compose\b|install\b|apply\b|get\b|profile\b|clone\b)"
    r"|\s*\\?\s*$)"
)
"""The first line of a shell command, as opposed to a sentence that begins with a program's name."""

_BARE_COMMAND = re.compile(rf"^\s*(?:{_COMMANDS})\s*$")
_SHELL_LINE = re.compile(
    r"^\s*(?:-{1,2}[A-Za-z]|\||&&|#|for\b|do\b|done\b|if\b|fi\b|while\b|echo\b|wait\b|sleep\b|[A-Z_]+=)"
)
TREE = re.compile("[├└]──|^\\s*(?:\\|--|`--|\\+--)")
"""A line of a directory tree."""

SAMPLE = re.compile(r"^\s*nv_[a-z0-9_]+(?:\{[^}]*\})?\s+[-+0-9.eE]+(?:\s+[0-9]+)?\s*(?:#.*)?$")
"""A line of a metrics page."""

_FROM = re.compile(r"^FROM\s+[\w./:${}-]+(?:\s+AS\s+\w+)?\s*$")
_PATH = re.compile(r"^\s*[\w.<>*{}~/-]+(?:\s+#.*)?$")

_FENCES: dict[str, Kind] = {
    "pbtxt": "config",
    "protobuf": "config",
    "proto": "config",
    "textproto": "config",
    "prototxt": "config",
    "bash": "command",
    "sh": "command",
    "shell": "command",
    "console": "command",
    "zsh": "command",
    "terminal": "command",
    "dockerfile": "dockerfile",
    "docker": "dockerfile",
    "yaml": "yaml",
    "yml": "yaml",
    "promql": "metrics",
    "prometheus": "metrics",
}
_QUOTE = "\"'“”„‘’"
_PBTXT_START = re.compile(
    rf"^([A-Za-z_]\w*)[ \t]*(?:\{{|\[|:[ \t]*(?:[\[{{<{_QUOTE}]|-?[0-9]|true\b|false\b|[A-Z][A-Z_0-9]{{3,}}\b)"
    r"|:?[ \t]*$)"
)
_UNQUOTED = re.compile(r"^(name|platform|backend)[ \t]*:[ \t]*[\w.-]+$")
_ONE_LINE = re.compile(rf"[\[{{]|:\s*(?:[{_QUOTE}][^{_QUOTE}]*[{_QUOTE}]|-?[0-9]+|true|false|[A-Z_0-9]+)\s*(?:#.*)?$")
_PBTXT_LINE = re.compile(rf"^\s*(?:[\[\]{{}}<>,;]|[A-Za-z_]\w*\s*(?::|\{{|\[|<|$)|-?[0-9]|[{_QUOTE}]|#|//)")
_MESSAGE = re.compile(r"^[A-Z]\w*\s*\{\s*$")
_YAML = re.compile(r"(?m)^\s*(?:-\s+)?(?:apiVersion|services|containers|image|kind|groups|alert|expr)\s*:")
_YAML_LINE = re.compile(r"^\s*(?:-\s|[\w.\"'/-]+:|#|[\"'-])")


_BEGINNING = re.compile(
    r"\s*(?:[#@{\[(\"']|//|(?:import|from|class|def|async|with|for|if|try|while|return|raise|assert|await|FROM)\b"
    r"|nv_[a-z]|-\s+\w+:|[\w./~<>{}-]+/?\s*$|[A-Za-z_][\w.\[\]\"']*\s*(?:[-+*/|&]?=|[({\[:,]|$))"
)


def may_begin(lines: Sequence[str]) -> bool:
    """Whether a block of any kind could begin with the first of these lines.

    Much cheaper than ``kind_of``, so that prose and data cost nothing more.
    """
    line = lines[0]
    if TREE.search(line) or COMMAND.match(line):
        return True
    if not _BEGINNING.match(line):
        return False
    words = line.strip()
    return (
        may_be_open(line)
        or any(pattern.match(words) for pattern in (SAMPLE, _PATH, _FROM, _UNQUOTED, _MESSAGE))
        or _may_be_yaml(lines)
        or _may_be_python(words)
    )


def _may_be_yaml(lines: Sequence[str]) -> bool:
    return any(map(_YAML.match, takewhile(_YAML_LINE.match, lines)))


def _may_be_python(line: str) -> bool:
    """Whether a line is Python, or the beginning of some."""
    try:
        codeop.compile_command(line, symbol="exec")
    except (SyntaxError, OverflowError, *BEYOND_PARSING):
        return line.endswith("\\")
    return True


def may_be_open(line: str) -> bool:
    """Whether a block that is understood only as a whole could begin with a line: a comment, a message, JSON."""
    match = _PBTXT_START.match(line.strip())
    field = match is not None and match.group(1) in types()["inference.ModelConfig"].fields
    return field or bool(_MESSAGE.match(line)) or line.lstrip().startswith(("#", "{", "[", "//"))


def kind_of_fence(word: str, text: str) -> Kind:
    """What a fenced block is."""
    word = word.lower()
    if word in ("python", "py", "python3", "ipython"):
        return python_kind(text)
    if word in ("json", "jsonc", "json5"):
        return "request" if is_request(text) else "other"
    found = kind_of(text)
    if found in ("tree", "metrics"):
        return found
    if word in ("proto", "protobuf") and re.search(r"(?m)^\s*(?:message|syntax|service|enum)\b", text):
        return "other"  # a schema, not a configuration
    named = _FENCES.get(word)
    if named == "config" and not begins_config(text):
        return "other"  # an item of a list, a diff
    if named is not None:
        return named
    return found or "other"


def kind_of(text: str) -> Kind | None:
    """What a passage without a fence is; None for prose."""
    lines = [line for line in text.split("\n") if line.strip()]
    code = [line for line in lines if not line.lstrip().startswith(("#", "//"))]
    if not lines:
        return None
    if sum(1 for line in lines if TREE.search(line)) >= max(1, len(lines) // 3):
        return "tree"
    if not code:
        return "comment"
    if len(code) > 2 and any(line.strip() == "config.pbtxt" for line in code) and all(map(_PATH.match, code)):
        return "tree"
    if all(SAMPLE.match(line) for line in code):
        return "metrics"
    if is_request(text):
        return "request"
    if _FROM.match(code[0]) and "/" in code[0]:
        return "dockerfile"
    if _is_command(code):
        return "command"
    if is_config(code):
        return "config"
    if is_python(text):
        return python_kind(text)
    if _MESSAGE.match(code[0]) and code[-1].strip().endswith("}"):
        return "message"
    if _YAML.search(text) and all(map(_YAML_LINE.match, code)):
        return "yaml"
    return None


def _is_command(code: list[str]) -> bool:
    if not COMMAND.match(code[0]):
        return False
    if _BARE_COMMAND.match(code[0]) and (len(code) == 1 or not _SHELL_LINE.match(code[1])):
        return False
    continued = False
    for line in code:
        if not (continued or COMMAND.match(line) or _SHELL_LINE.match(line) or line[:1] in " \t"):
            return False
        continued = line.rstrip().endswith("\\") or line.count("'") % 2 == 1
    return True


def is_config(code: list[str]) -> bool:
    """Whether lines (without comments) read as a config.pbtxt or a part of one, also with the usual slips."""
    first = code[0].strip()
    root = types()["inference.ModelConfig"].fields
    match = _PBTXT_START.match(first) or (_UNQUOTED.match(first) if _has_field(code[1:]) else None)
    if match is None or match.group(1) not in root or any(line.startswith("datatype:") for line in code):
        return False  # ``datatype`` is the wire's word: a printed request
    if len(code) == 1 and not _ONE_LINE.search(first):
        return False
    bare = re.fullmatch(r"\w+\s*:?", first)
    if bare and not re.match(rf"\s*(?:[\[{{<{_QUOTE}]|-?[0-9])", code[1]):
        return False  # a word of a sentence
    return all(_PBTXT_LINE.match(line) for line in code)


def _has_field(code: list[str]) -> bool:
    """Whether a line is a field of a configuration beyond doubt."""
    matches = [_PBTXT_START.match(line.strip()) for line in code]
    return any(match is not None and match.group(1) in types()["inference.ModelConfig"].fields for match in matches)


def begins_config(text: str) -> bool:
    """Whether a text, said to be a config.pbtxt, begins like one (and is no diff)."""
    code = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith(("#", "//"))]
    if not code or any(re.match(r"[+-]\s", line) for line in code):
        return False
    return bool(re.match(r"\s*[A-Za-z_]\w*\s*[:{\[]", code[0]))


def is_request(text: str) -> bool:
    """Whether a text is JSON with a member ``inputs``."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return bool(re.search(r'"inputs"\s*:\s*\[', text) and re.search(r'"(?:datatype|shape)"\s*:', text))
    return isinstance(value, dict) and ("inputs" in value or "instances" in value)


_STRONG = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.With, ast.For,
    ast.Return, ast.AugAssign, ast.Try, ast.While,
)  # fmt: skip


def is_python(text: str) -> bool:
    """Whether a text is Python code, and more than a word that happens to parse."""
    tree = parse_python(text)
    if tree is None or not tree.body:
        return False
    return any(
        isinstance(node, _STRONG) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await))
        for node in tree.body
    )


BEYOND_PARSING = (ValueError, RecursionError, MemoryError)
"""What Python's parser raises where it gives up on a text: null bytes, and nesting too deep for it."""


def parse_python(text: str) -> ast.Module | None:
    """The syntax tree; None where it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, *BEYOND_PARSING):
        return None


_MODEL = re.compile(
    r"triton_python_backend_utils|\bpb_utils\b|\bTritonPythonModel\b|^def execute\(|#.*\bmodel\.py\b", re.MULTILINE
)


def python_kind(text: str) -> Kind:
    """Whether Python code is for the Python backend or anything else."""
    return "model" if _MODEL.search(text) else "python"
