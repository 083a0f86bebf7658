"""The linter of one config.pbtxt."""

from __future__ import annotations

from workbench.config.document import ConfigDocument
from workbench.config.findings import Finding, Fix, LintContext, Report, apply_fixes
from workbench.config.lint_message import lint_message
from workbench.config.lint_syntax import lint_syntax
from workbench.config.normalization import complete_backend, normalize
from workbench.config.path import Edit
from workbench.config.problem import Problem
from workbench.config.schema import Message
from workbench.config.syntax import MessageNode, ScalarNode, walk
from workbench.config.validation import problems
from workbench.errors import ConfigError


def lint_config(
    document: ConfigDocument | bytes,
    *,
    triton_release: str = "25.03",
    directory_name: str | None = None,
    cores: int | None = None,
    path: str = "",
    context: LintContext | None = None,
) -> list[Finding]:
    """Everything that is wrong or questionable in a config.pbtxt, in the order of the file; never raises for the file.

    Args:
        document: a parsed file, or the bytes of one that need not parse.
        triton_release: the release that it is meant for, as in ``25.03``.
        directory_name: the model directory's name, where known.
        cores: CPU cores of the machine that it is meant for, where known.
        path: the file's name for error texts.
        context: all of that and more in one; then the others are ignored.
    """
    context = context or LintContext(triton_release, directory_name, cores)
    data = document if isinstance(document, bytes) else document.data
    report = Report(data)
    try:
        parsed = ConfigDocument.parse(document, path) if isinstance(document, bytes) else document
    except ConfigError as error:
        lint_syntax(data, error, report)
        return report.sorted()
    _lint_refused(parsed, context, report)
    lint_message(parsed, context, report)
    return report.sorted()


def fix_all(data: bytes, *, rounds: int = 20, context: LintContext | None = None) -> tuple[bytes, list[Finding]]:
    """Applies fixes until none is left (or ``rounds`` is over): the file, and the findings that remain."""
    findings = lint_config(data, context=context)
    for _ in range(rounds):
        mended = apply_fixes(data, findings)
        if mended == data:
            break
        data = mended
        findings = lint_config(data, context=context)
    return data, findings


# what Triton refuses


def _lint_refused(document: ConfigDocument, context: LintContext, report: Report) -> None:
    message = document.message
    name = context.directory_name
    if name is not None and message.name and message.name != name:
        text = f"unexpected directory name '{name}' for model '{message.name}', directory name must equal model name"
        fix = Fix(f'Set name to "{name}"', (Edit("name", "set", name),))
        _at(document, "name", "name-not-directory", text, report, fix)
    if message.platform == "custom":
        text = f"unexpected platform type 'custom' for {message.name or name or 'the model'}"
        _at(document, "platform", "legacy-platform", text, report, _custom_fix(message))
        return
    for problem in problems(_prepared(message, context), gpus=context.gpus or ()):
        rule = _RULES.get(problem.path.split("[")[0], "validation")
        if _needs_gpus(problem, context):
            continue
        text, severity = problem.message, "error"
        if _may_be_completed(problem):
            text, severity = f"{text} (unless the backend completes it)", "warning"
        _at(document, problem.path, rule, text, report, _fix_of(problem, document, message), severity)


_RULES = {
    "dynamic_batching.preferred_batch_size": "preferred-above-max",
    "sequence_batching.oldest.preferred_batch_size": "preferred-above-max",
    "dynamic_batching.priority_queue_policy": "priority-level",
    "dynamic_batching.default_priority_level": "priority-level",
}


def _prepared(message: Message, context: LintContext) -> Message:
    """The configuration as Triton checks it, as far as it can be told from one file."""
    name = message.name or context.directory_name or "model"
    if message.backend == "tensorflow" and context.files is None:
        message.platform = message.platform or "tensorflow_savedmodel"  # the files would tell which of the two
    try:
        complete = complete_backend(message, name, context.files or ())
    except ConfigError:
        complete = complete_backend(message, name, ("model.py",))  # the backend is told by files that are not known
    return normalize(complete, model_name=name, gpus=context.gpus or ())


def _may_be_completed(problem: Problem) -> bool:
    """Whether auto-completion could fill in what is missing, so that Triton would not refuse it."""
    return "must specify 'data_type'" in problem.message or "must specify 'dims'" in problem.message


def _needs_gpus(problem: Problem, context: LintContext) -> bool:
    """Whether GPUs decide that are not known here; a negative id is wrong everywhere."""
    text = problem.message
    about = "has kind KIND_GPU but" in text or "unsupported gpu id" in text
    return about and context.gpus is None and "gpu id -" not in text


def _at(
    document: ConfigDocument,
    path: str,
    rule: str,
    message: str,
    report: Report,
    fix: Fix | None,
    severity: str = "error",
) -> None:
    span = document.locate(path, nearest=True)
    place = (span.start, span.end) if span is not None else (0, 0)
    report.add(rule, "error" if severity == "error" else "warning", place, message, fix=fix, path=path)


def _custom_fix(message: Message) -> Fix | None:
    stem = message.default_model_filename.removeprefix("lib").removesuffix(".so")
    if not message.default_model_filename.endswith(".so") or not stem:
        return None
    edits = [Edit("platform", "remove"), Edit("backend", "set", stem)]
    if message.default_model_filename != f"libtriton_{stem}.so":
        edits += [Edit("runtime", "set", message.default_model_filename), Edit("default_model_filename", "remove")]
    return Fix(f'Replace platform "custom" by backend "{stem}"', tuple(edits))


def _levels_fix(path: str, document: ConfigDocument, message: Message) -> Fix:
    """Levels counted from 0 are counted from 1 instead; a level too high is removed."""
    batching = message.dynamic_batching
    levels = sorted(batching.priority_queue_policy)
    if 0 in levels and levels[-1] < batching.priority_levels:
        changes = [
            (node.start, node.end, str(int(node.value) + 1).encode())
            for node in _level_keys(document)
            if isinstance(node.value, int)
        ]
        if len(changes) == len(levels):
            return Fix("Count the levels from 1 (1 is the highest)", (), tuple(changes))
    return Fix("Remove the policy of a level that does not exist", (Edit(path, "remove"),))


def _level_keys(document: ConfigDocument) -> list[ScalarNode]:
    """The keys of ``priority_queue_policy`` as they are written."""
    keys: list[ScalarNode] = []
    for node in walk(document.tree):
        if node.type.name == "priority_queue_policy":
            for entry in node.items():
                if isinstance(entry, MessageNode):
                    keys += [each.value for each in entry.named("key") if isinstance(each.value, ScalarNode)]
    return keys


def _fix_of(problem: Problem, document: ConfigDocument, message: Message) -> Fix | None:
    """A fix where there is one that most people would choose."""
    path, text = problem.path, problem.message
    if "preferred" in text and ("must be <= max" in text or "must be positive" in text):
        return Fix("Remove this preferred batch size", (Edit(path, "remove"),)) if document.locate(path) else None
    if "default priority level must be in range" in text:
        return Fix("Set default_priority_level to 1", (Edit(path, "set", 1),))
    if "priority queue policy must have priority level" in text:
        return _levels_fix(path, document, message)
    if "has kind KIND_CPU but" in text or "has kind KIND_MODEL but" in text:
        return Fix("Remove gpus", (Edit(path, "remove"),))
    if text.startswith("'max_batch_size' must be non-negative"):
        return Fix("Set max_batch_size to 0", (Edit("max_batch_size", "set", 0),))
    if "should not be specified for ensemble" in text or "can not be specified for ensemble" in text:
        return Fix(f"Remove {path}", (Edit(path, "remove"),))
    if "Please disable the response cache" in text:
        return Fix("Disable the response cache", (Edit("response_cache.enable", "set", False),))
    if "Ensemble model" in text:
        return Fix("Remove backend", (Edit("backend", "remove"),))
    if text.startswith("unexpected 'platform' and 'backend' pair") and message.backend:
        return Fix("Remove platform, keep backend", (Edit("platform", "remove"),))
    return None
