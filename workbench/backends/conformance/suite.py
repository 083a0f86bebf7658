"""The checks as a class of tests for pytest, and as a function. pytest is not needed for the function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from workbench.backends.conformance.checks import CHECKS, not_applicable
from workbench.backends.conformance.kit import Kit

__all__ = ["CHECKS", "BackendConformance", "conformance_problems"]


def conformance_problems(kit: Kit, folder: Path) -> dict[str, str]:
    """Runs all checks and gives what is wrong, check by check; empty where all is well.

    ``folder`` is where models are written; it must be empty.
    """
    problems = {}
    for name, check in CHECKS.items():
        if not_applicable(kit, name):
            continue
        (folder / name).mkdir()
        try:
            check(kit, folder / name)
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {error}"
    return problems


class BackendConformance(ABC):
    """Tests for pytest: a subclass named ``Test...`` gives its kit. Each check is a test of its own.

    A check that the kit says does not apply passes: the kit's words are the reason.
    """

    @abstractmethod
    def kit(self) -> Kit:
        """The backend's models; asked for each test."""

    def _check(self, name: str, folder: Path) -> None:
        kit = self.kit()
        if not not_applicable(kit, name):
            CHECKS[name](kit, folder)

    def test_names(self, tmp_path: Path) -> None:
        """Outputs have the configuration's names."""
        self._check("names", tmp_path)

    def test_data_types(self, tmp_path: Path) -> None:
        """Every type that the framework has goes in and comes out."""
        self._check("data_types", tmp_path)

    def test_rows_alone(self, tmp_path: Path) -> None:
        """Row i of a batch equals row i alone."""
        self._check("rows_alone", tmp_path)

    def test_dynamic_shapes(self, tmp_path: Path) -> None:
        """A variable dimension takes one size after the other."""
        self._check("dynamic_shapes", tmp_path)

    def test_scalars(self, tmp_path: Path) -> None:
        """A tensor without a dimension."""
        self._check("scalars", tmp_path)

    def test_zero_rows(self, tmp_path: Path) -> None:
        """A request without a row."""
        self._check("zero_rows", tmp_path)

    def test_errors(self, tmp_path: Path) -> None:
        """A batch that fails spoils no other."""
        self._check("errors", tmp_path)

    def test_closing(self, tmp_path: Path) -> None:
        """Closing twice is allowed."""
        self._check("closing", tmp_path)

    def test_reloading(self, tmp_path: Path) -> None:
        """A model is opened beside its old self."""
        self._check("reloading", tmp_path)

    def test_two_instances(self, tmp_path: Path) -> None:
        """Two instances execute at once."""
        self._check("two_instances", tmp_path)

    def test_imported_late(self, tmp_path: Path) -> None:
        """Nothing of the framework is imported before a model needs it."""
        self._check("imported_late", tmp_path)
