"""A run of the store that is written while it is measured: whoever is killed leaves what was measured until then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from workbench.errors import InternalError, WorkbenchError
from workbench.profiling.point import Point
from workbench.records.runs import Run


class RunBook:
    """A run that is open for writing; each block is stored as soon as it is measured.

    A store that takes no more (a full disk, say) is told of in ``unstored``: what is measured goes on.

    Args:
        run: the run, just made.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.unstored = ""
        """Why not everything is stored; empty while all is."""
        self._count = 0

    def _keep(self, point: Point, place: Mapping[str, Any], **meta: Any) -> None:
        """Stores a block, whose and of which turn it is (``place``), and what is said of the run from then on."""
        self._count += 1

        def add() -> None:
            row = {**point.row(), **place}
            self.run.add_point({**point.to_json(), **place}, row=row, config=point.config or None)
            self.run.set_meta(**meta)

        self._safely(add)

    def _end(self, status: str, **meta: Any) -> None:
        """Stores what was found, and how it ended."""

        def end() -> None:
            self.run.set_meta(**meta)
            self.run.finish(status)

        self._safely(end)
        if self.unstored:  # else it would be told as running until the process ends
            with contextlib.suppress(WorkbenchError):
                self.run.set_meta(error=self.unstored)
                self.run.finish("failed")

    def _safely(self, write: Callable[[], None]) -> None:
        if self.unstored:
            return
        try:
            write()
        except WorkbenchError as error:
            what = f"from block {self._count} on nothing was" if self._count > 1 else "it was not"
            self.unstored = f"{what} stored: {error.message} ({error.where})"

    def stored(self) -> str:
        """The id of the run.

        Raises:
            InternalError: not all of it is there.
        """
        if self.unstored:
            raise InternalError(self.unstored, where=str(self.run.path))
        return self.run.id

    def close(self) -> None:
        """Closes the file."""
        self.run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:  # of the run that is left; it is raised
            self._safely(lambda: self.run.set_meta(error=f"it broke off: {str(problem) or type(problem).__name__}"))
            self._safely(lambda: self.run.finish("failed"))
        self.close()
