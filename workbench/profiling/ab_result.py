"""Two configurations compared: the blocks of an A/B, what they say, and the run of the store that they are kept in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workbench.errors import InvalidRequest
from workbench.profiling.ab_verdict import METRICS, Comparison, compare_points, confidence_of
from workbench.profiling.left_out import left_out
from workbench.profiling.load import Load
from workbench.profiling.point import Point
from workbench.profiling.run_book import RunBook
from workbench.profiling.settings import short_name
from workbench.records.runs import Run, RunStore

if TYPE_CHECKING:
    import pandas as pd

Name = Literal["A", "B"]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: the settings that are applied (values by path), of which model; none leaves it as it is."""

    name: Name
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """In a line."""
        settings = ", ".join(f"{short_name(path)} {value}" for path, value in self.settings.items())
        return f"{self.model} {settings or 'as configured'}"


@dataclass(frozen=True, slots=True)
class Block:
    """A measured block: whose, in which pair (from 0), and its point."""

    side: Name
    pair: int
    point: Point

    @property
    def usable(self) -> bool:
        """Whether its figures may be compared."""
        return self.point.valid and not self.point.failed and not self.point.error

    @property
    def why(self) -> list[str]:
        """Why they may not be."""
        failed = [f"{self.point.failed} requests failed"] if self.point.failed else []
        return [self.point.error] if self.point.error else [*self.point.reasons, *failed][:1]


def usable_pairs(blocks: Sequence[Block]) -> list[dict[Name, Point]]:
    """The pairs of which both blocks may be believed."""
    found: dict[int, dict[Name, Point]] = {}
    for block in blocks:
        if block.usable:
            found.setdefault(block.pair, {})[block.side] = block.point
    return [pair for pair in found.values() if len(pair) == 2]


def compare_blocks(blocks: Sequence[Block], looks: Sequence[int]) -> dict[str, Comparison]:
    """Every figure over the pairs that may be believed, each with the confidence of one of the planned looks.

    An A/B that is ended between two looks is looked at there in place of the next one, so that all looks together still
    err no more often than is said: as long as it was not ended for what its blocks showed.
    """
    pairs = usable_pairs(blocks)
    confidence = confidence_of(len(looks))
    return {name: compare_points(name, [(pair["A"], pair["B"]) for pair in pairs], confidence) for name in METRICS}


@dataclass(frozen=True, slots=True)
class ABResult:
    """Two configurations compared. ``blocks`` are in the order of measuring, failed and not valid ones among them.

    ``faster`` is ``A``, ``B`` or empty; ``comparisons`` has every figure, each with its own interval; ``metric`` is the
    one that decides. ``looks`` are the numbers of pairs after which it was to be judged. ``stopped`` says that it was
    ended early: its verdict holds unless it was ended for what it had shown. ``running`` says that it is still being
    measured: it has no verdict before its end. ``error`` is what broke it off, ``run_id`` where it is stored,
    ``unstored`` why it is not, or not whole.
    """

    a: Side
    b: Side
    load: Load
    blocks: tuple[Block, ...]
    comparisons: Mapping[str, Comparison]
    metric: str
    stopped: bool = False
    restored: bool = True
    error: str = ""
    unstored: str = ""
    looks: tuple[int, ...] = ()
    running: bool = False
    run_id: str = ""

    @property
    def faster(self) -> Literal["A", "B", ""]:
        """The better side, if there is one."""
        return "" if self.running else self.comparisons[self.metric].faster

    @property
    def verdict(self) -> str:
        """In a sentence, by the figure that decides."""
        if self.error:
            return f"no verdict: {self.error}"
        if self.running:
            return f"no verdict yet: {self.progress}"
        return self.comparisons[self.metric].text

    @property
    def progress(self) -> str:
        """How far it came, in words."""
        return progress_of(self.blocks, self.looks)

    def to_frame(self) -> pd.DataFrame:
        """One row a block: side, pair, and the point's row."""
        import pandas as pd

        return pd.DataFrame([_row(block) for block in self.blocks])

    def save(self, store: RunStore, *, title: str = "") -> str:
        """Writes the blocks as a run of the store, with the verdict, and gives its id.

        Raises:
            InternalError: not all of it can be written there.
        """
        with ABBook(store, (self.a, self.b), self.load, self.metric, self.looks, title=title) as book:
            for block in self.blocks:
                book.write(block)
            book.finish(self)
            return book.stored()

    @classmethod
    def open(cls, store: RunStore | str | Path = "runs", run: str | Path = "latest") -> ABResult:
        """An A/B out of the run store, also one that was killed in the middle: what it has is judged.

        Args:
            store: the store, or its directory.
            run: an id, the beginning of one, ``latest``, or a file.

        Raises:
            NotFound: there is no such run.
            InvalidRequest: it is no A/B, or of a version that did not store which block is whose.
        """
        store = RunStore(store) if isinstance(store, str | Path) else store
        with store.open(run) as opened:
            return _read(opened)

    def __repr__(self) -> str:
        lines = [self.verdict, f"  A: {self.a.label}", f"  B: {self.b.label}", f"  {self.load.label}"]
        if not self.running:
            lines += [f"  {each.text}" for name, each in self.comparisons.items() if name != self.metric]
        if self.stopped:
            lines.append(f"  stopped before its end: {self.progress}")
        if not self.restored:
            lines.append("  ! the configuration could not be restored")
        text = left_out([block.why for block in self.blocks if not block.usable], len(self.blocks))
        lines += [f"  ! {text}"] if text else []
        lines += [f"  ! {self.unstored}"] if self.unstored else []
        return "\n".join(lines)


def progress_of(blocks: Sequence[Block], looks: Sequence[int]) -> str:
    """How far an A/B is, in words."""
    pairs = len(usable_pairs(blocks))
    least = f" of at least {looks[0]}" if looks and pairs < looks[0] else ""
    return f"{pairs}{least} pair{'s' * (pairs != 1 or bool(least))} of blocks measured"


def _row(block: Block) -> dict[str, Any]:
    return {"side": block.side, "pair": block.pair, **block.point.row()}


class ABBook(RunBook):
    """The run of an A/B, open for writing.

    Args:
        store: where.
        sides: A and B.
        load: of a block.
        metric: the figure that decides.
        looks: the numbers of pairs after which it is judged.
        title: what a person calls the run.

    Raises:
        InternalError: nothing can be written there.
    """

    def __init__(
        self,
        store: RunStore,
        sides: tuple[Side, Side],
        load: Load,
        metric: str,
        looks: Sequence[int],
        *,
        title: str = "",
        url: str = "",
    ) -> None:
        self._looks = tuple(looks)
        self._blocks: list[Block] = []
        run = store.create(
            "ab",
            model=sides[0].model,
            title=title,
            sides={side.name: {"model": side.model, "settings": dict(side.settings)} for side in sides},
            load=load.to_json(),
            seed=load.seed,
            metric=metric,
            looks=list(looks),
            verdict=self._so_far(),
            **({"url": url} if url else {}),
        )
        super().__init__(run)

    def _so_far(self) -> str:
        return f"not ended: {progress_of(self._blocks, self._looks)}"

    def write(self, block: Block) -> None:
        """Stores a block, and how far the A/B is."""
        self._blocks.append(block)
        self._keep(block.point, {"side": block.side, "pair": block.pair}, verdict=self._so_far())

    def not_restored(self) -> None:
        """Stores that the configuration is not what it was, however the A/B ends."""
        self._safely(lambda: self.run.set_meta(restored=False))

    def finish(self, result: ABResult) -> None:
        """Stores the verdict and how it ended."""
        status = "failed" if result.error else "stopped" if result.stopped else "done"
        self._end(status, verdict=result.verdict, restored=result.restored, error=result.error)


def _read(run: Run) -> ABResult:
    meta, status = run.meta, run.info.status
    stored = run.points()
    whole = {"sides", "load", "metric", "looks"} <= meta.keys() and all("side" in each for each in stored)
    if meta.get("kind") != "ab" or not whole:
        why = f"it is a {meta.get('kind')}" if meta.get("kind") != "ab" else "it does not say which block is whose"
        raise InvalidRequest(f"run {run.id} is no A/B that can be judged: {why}", where=str(run.path))
    a, b = (Side(name, **meta["sides"][name]) for name in ("A", "B"))
    blocks = tuple(Block(each["side"], int(each["pair"]), Point.from_json(each)) for each in stored)
    looks = tuple(meta["looks"])
    return ABResult(
        a, b, Load.from_json(meta["load"]), blocks, compare_blocks(blocks, looks), str(meta["metric"]),
        stopped=status in ("stopped", "interrupted"),
        restored=bool(meta.get("restored", True)),
        error=str(meta.get("error", "")),
        looks=looks,
        running=status == "running",
        run_id=run.id,
    )  # fmt: skip
