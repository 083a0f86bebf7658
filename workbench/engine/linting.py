"""The linter of files on disk: a config.pbtxt, a model directory, or whole repositories with what goes across models.

The rules of one configuration are the config room's; here they get what only directories and other models tell.
Nothing is loaded and no framework is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.config import Finding, LintContext, apply_fixes, lint_config
from workbench.config.texts import is_text
from workbench.engine.configure import write_atomically
from workbench.engine.lint_directory import lint_directory
from workbench.engine.lint_models import LintedModel, read_linted
from workbench.engine.lint_repository import EnsembleLint, lint_duplicates, lint_resources
from workbench.engine.lint_texts import lint_lone_text, lint_model_files
from workbench.errors import ConfigError, InvalidRequest, NotFound
from workbench.repository.files import read_regular
from workbench.repository.models import find_versions, list_models
from workbench.scheduling.rate_limiter import ResourceLimit, parse_resource_limit

DEFAULT_RELEASE = "25.03"
"""The Triton release that files are meant for unless one is named."""

ROUNDS = 20
"""How often fixes are applied: a fix can uncover more."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """What was found in one file, or about one directory."""

    path: Path
    findings: tuple[Finding, ...]
    fixed: tuple[str, ...] = ()
    """What was written into the file, in words (``lint(..., fix=True)``)."""

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """As ``workbench lint --json`` prints it."""
        return {
            "path": str(self.path),
            "ok": self.ok,
            "findings": [finding.to_json() for finding in self.findings],
            "fixed": list(self.fixed),
        }

    def lines(self) -> Iterator[str]:
        """As people read it: a line for each finding, and one for its fix."""
        yield from (f"{self.path}: fixed: {text}" for text in self.fixed)
        whole = self.path.is_dir()
        for finding in self.findings:
            place = str(self.path) if whole else f"{self.path}:{finding.line}:{finding.column}"
            yield f"{place}: {finding.severity}: {finding.message} [{finding.rule}]"
            if finding.fix is not None:
                yield f"    fix: {finding.fix.title}"


@dataclass(frozen=True, slots=True, repr=False)
class LintReport(Sequence[FileReport]):
    """The files that were checked."""

    files: tuple[FileReport, ...]

    @property
    def ok(self) -> bool:
        """Whether no file has an error."""
        return all(report.ok for report in self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Any) -> Any:
        return self.files[index]

    def __repr__(self) -> str:
        lines = [line for report in self.files for line in report.lines()]
        severities = [finding.severity for report in self.files for finding in report.findings]
        counts = [
            _count(severities.count(severity), severity)
            for severity in ("error", "warning", "hint")
            if severity in severities
        ]
        files = sum(1 for report in self.files if not report.path.is_dir())
        fixes = sum(finding.fix is not None for report in self.files for finding in report.findings)
        more = f" ({_count(fixes, 'fix', 'fixes')} offered: --fix)" if fixes else ""
        lines.append(f"{_count(files, 'file')}: {', '.join(counts) or 'nothing to say'}{more}")
        return "\n".join(lines)


def lint(
    *paths: str | Path,
    triton_release: str = DEFAULT_RELEASE,
    fix: bool = False,
    p99_ms: float | None = None,
    cores: int | None = None,
    gpus: int | None = None,
    rate_limit_resources: Sequence[str] = (),
    auto_complete: bool = True,
) -> LintReport:
    """Checks configurations, model directories, repositories, and texts: tutorials, notebooks, model.py, requests.

    Several repositories are checked as one server would load them. Only what the files say counts: what depends on a
    machine (cores, GPUs, declared resources) is judged where it is given, as the files may be meant for another one.

    Args:
        paths: which.
        triton_release: what the files are meant for (``25.03``).
        fix: write the fixes that are offered, each file atomically; the report has what is left then.
        p99_ms: the latency goal, in ms: queue delays above it are reported.
        cores: CPU cores of the machine: threads × instances above them are reported.
        gpus: number of its GPUs: instance groups that need others are reported.
        rate_limit_resources: as ``--rate-limit-resource``, NAME:COUNT or NAME:COUNT:DEVICE.
        auto_complete: False for a server with --disable-auto-complete-config.

    Raises:
        NotFound: there is no configuration at a path.
        ConfigError: a file cannot be read or written.
        InvalidRequest: an argument makes no sense.
    """
    devices = None if gpus is None else tuple(range(gpus))
    context = LintContext(triton_release, None, cores, devices, None, p99_ms, auto_complete)
    if context.release == (0, 0):
        raise InvalidRequest(f"'{triton_release}' is no Triton release", hint="as in 25.03: year and month")
    if not paths:
        raise InvalidRequest("lint needs a path", hint="a config.pbtxt, a model directory or a repository")
    limits = tuple(parse_resource_limit(text) for text in rate_limit_resources)
    run = _Run(_targets([Path(path) for path in paths]), context, limits)
    return LintReport(tuple(run.mend() if fix else run.reports()))


# ---- what to check


@dataclass(slots=True)
class _Targets:
    """Lone files, model directories, and repositories with all their models.

    A config.pbtxt that lies among versions stands for its model; another one may lie anywhere.
    """

    files: list[Path] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)
    repositories: list[Path] = field(default_factory=list)


def _targets(paths: Sequence[Path]) -> _Targets:
    """Sorts paths by what they are.

    Raises:
        NotFound: there is nothing at a path, or nothing to check.
    """
    found = _Targets()
    for path in paths:
        if path.is_file() and path.name == "config.pbtxt" and find_versions(path.parent)[0]:
            found.directories.append(_named(path.parent))
        elif path.is_file():
            found.files.append(path)
        elif not path.is_dir():
            raise NotFound(f"{path} does not exist", where=str(path))
        elif _is_model(path):
            found.directories.append(_named(path))
        elif list_models([path]):
            found.repositories.append(path)
        else:
            hint = "give a config.pbtxt, a model directory or a repository"
            raise NotFound(f"no config.pbtxt at {path}", where=str(path), hint=hint)
    return found


def _named(directory: Path) -> Path:
    """A directory by a path that ends with its name, which is the model's: ``.`` does not."""
    return directory if directory.name not in ("", "..") else directory.resolve()


def _is_model(path: Path) -> bool:
    """Whether a directory is a model's: it has a configuration, or versions and no models."""
    if (path / "config.pbtxt").is_file():
        return True
    versions, _ = find_versions(path)
    return bool(versions) and not any(path.glob("*/config.pbtxt"))


# ---- checking


class _Run:
    """One call of the linter; ``overrides`` are the files as mended so far."""

    def __init__(self, targets: _Targets, context: LintContext, limits: Sequence[ResourceLimit]) -> None:
        self._targets = targets
        self._context = context
        self._limits = limits
        self._places = list_models(targets.repositories)
        self._overrides: dict[Path, bytes] = {}

    def reports(self) -> list[FileReport]:
        """What is found in each file."""
        return [FileReport(path, tuple(findings)) for path, findings in self._check().items()]

    def mend(self) -> list[FileReport]:
        """Applies fixes until none is left, then writes the files that changed."""
        found = self._check()
        offered: dict[Path, dict[tuple[str, str], str]] = {}
        for _ in range(ROUNDS):
            changed = False
            for path, findings in found.items():
                data = self._read(path) if any(finding.fix for finding in findings) else b""
                mended = apply_fixes(data, findings)
                if mended != data:
                    self._overrides[path], changed = mended, True
                    titles = offered.setdefault(path, {})
                    for each in findings:
                        if each.fix is not None:
                            titles[each.rule, each.message] = f"{each.fix.title} [{each.rule}]"
            if not changed:
                break
            found = self._check()
        for path in self._overrides:
            self._write(path)
        reports = []
        for path, findings in found.items():
            left = {(finding.rule, finding.message) for finding in findings}
            fixed = dict.fromkeys(title for key, title in offered.get(path, {}).items() if key not in left)
            reports.append(FileReport(path, tuple(findings), tuple(fixed)))
        return reports

    def _read(self, path: Path) -> bytes:
        if path in self._overrides:
            return self._overrides[path]
        try:
            return read_regular(path)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror or error}", where=str(path)) from error

    def _write(self, path: Path) -> None:
        try:
            write_atomically(path, self._overrides[path])
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror or error}", where=str(path), hint="is it writable?"
            ) from error

    def _check(self) -> dict[Path, list[Finding]]:
        found: dict[Path, list[Finding]] = {}
        for path in self._targets.files:
            found[path] = self._file(path)
        models = {directory: self._model(directory) for directory in self._targets.directories}
        for places in self._places.values():
            models.update({directory: self._model(directory) for directory in places})
        self._across(models)
        duplicates = lint_duplicates(self._places)
        for directory, model in models.items():
            for path, findings in (*model.findings(), *lint_model_files(model, self._read)):
                found.setdefault(path, []).extend(findings)
            for finding in duplicates.get(directory, ()):
                found.setdefault(directory, []).append(finding)
        return found

    def _file(self, path: Path) -> list[Finding]:
        """A configuration or a text with no model around it."""
        if is_text(path.name):
            return lint_lone_text(path, self._read(path), self._context)
        name = path.parent.resolve().name if path.name == "config.pbtxt" else None
        return lint_config(self._read(path), context=replace(self._context, directory_name=name), path=str(path))

    def _model(self, directory: Path) -> LintedModel:
        model = read_linted(directory, self._context, self._overrides)
        lint_directory(model)
        return model

    def _across(self, models: dict[Path, LintedModel]) -> None:
        """What goes across models: those of the repositories as one server would load them, each lone one with the
        models beside it."""
        unique = {name: places[0] for name, places in self._places.items() if len(places) == 1}
        known = {name: models[directory] for name, directory in unique.items()}
        ensembles = EnsembleLint(known.get, known, whole=True)
        for model in known.values():
            ensembles.check(model)
        lint_resources(list(known.values()), self._limits)
        for directory in self._targets.directories:
            beside: dict[str, LintedModel | None] = {models[directory].name: models[directory]}
            names = list_models([directory.parent]) if models[directory].config is not None else {}
            EnsembleLint(_beside(directory.parent, beside, self._model), names, whole=False).check(models[directory])
            lint_resources([models[directory]], self._limits)


def _beside(
    repository: Path, known: dict[str, LintedModel | None], read: Callable[[Path], LintedModel]
) -> Callable[[str], LintedModel | None]:
    """Looks up the models beside one that is checked alone."""

    def find(name: str) -> LintedModel | None:
        if name not in known:
            directory = repository / name
            known[name] = (
                read(directory) if name and "/" not in name and directory.is_dir() and _is_model(directory) else None
            )
        return known[name]

    return find


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
