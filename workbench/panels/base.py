"""What every panel is: a box of widgets over a session's state, and a static page of the same.

A panel is told of news only while somebody looks at it: it subscribes to the session when its first chart appears in a
page and leaves when the last one goes. Its callbacks only queue commands. They may run on the kernel's main thread or
on a subshell thread, news on the session's thread: all of them hold the panel's lock while they touch widgets.
"""

from __future__ import annotations

import threading
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import ipywidgets as W
from traitlets import MetaHasTraits

from workbench.charts.style import Chart
from workbench.errors import WorkbenchError
from workbench.panels.bokeh_view import BokehView
from workbench.panels.html import STYLE, chip, escape, page
from workbench.panels.routing import answer_while_busy

if TYPE_CHECKING:
    from workbench.session.server import Server
    from workbench.session.state import Command, SessionSnapshot

Info = TypeVar("Info")
STALE_AFTER_S = 5.0


class ChartView(BokehView):
    """One finished chart in a cell; a saved notebook keeps its picture.

    ``text`` is what it says as text, ``still`` what its picture shows where that is less (a picture has all its data in
    the notebook's file).
    """

    def __init__(self, draw: Callable[[Info], Chart], info: Info, *, text: str = "", still: Info | None = None) -> None:
        self._draw_again: Callable[[], Chart] = lambda: draw(info)
        self._draw_still: Callable[[], Chart] = lambda: draw(info if still is None else still)
        chart = draw(info)
        super().__init__(chart.figure, label=chart.title, height=chart.height, header=chart.header)
        self._numbers = text or f"{chart.title}: {chart.note}"

    def to_html(self, path: str | Path | None = None) -> str:
        """The chart as a static page that needs no network; written to ``path`` if one is given."""
        from workbench.panels.static import render_blocks

        text = page(self._label, *render_blocks([self._draw_again()]))
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def __repr__(self) -> str:
        return self._numbers

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        from workbench.panels.static import picture

        bundle: Any = super()._repr_mimebundle_(**kwargs)
        data, *rest = bundle
        return ({**data, "text/plain": repr(self), "text/html": picture([self._draw_still()])}, *rest)


class ChartBox(Generic[Info]):
    """A chart in a panel: what it shows now, and the widget that shows it.

    ``select`` are the sources that can be clicked, by name, with the column of their keys; ``on_select`` is told the
    name and the key.
    """

    def __init__(
        self,
        draw: Callable[[Info], Chart],
        update: Callable[[Chart, Info], None],
        info: Info,
        on_views: Callable[[], None],
        *,
        select: Mapping[str, str] | None = None,
        on_select: Callable[[str, Any], None] | None = None,
    ) -> None:
        self._draw = draw
        self._update = update
        self.info = info
        self.chart = draw(info)
        self._names = {str(source.id): name for name, source in self.chart.sources.items()}
        self.view = BokehView(
            self.chart.figure,
            label=self.chart.title,
            height=self.chart.height,
            header=self.chart.header,
            on_views=on_views,
            select={str(self.chart.sources[name].id): column for name, column in (select or {}).items()},
            on_select=None if on_select is None else lambda id, key: on_select(self._names[id], key),
        )

    def show(self, info: Info) -> None:
        """Brings the chart up to date, in the page too."""
        self.info = info
        self.view.update(lambda: self._update(self.chart, info))
        self.view.set_header(self.chart.header)

    def draw_again(self) -> Chart:
        """The same chart as a new figure, for a static page."""
        return self._draw(self.info)


class PanelType(ABCMeta, MetaHasTraits):
    """Widgets have a metaclass of their own; with this one a panel that leaves something out cannot be made."""


class Panel(W.VBox, metaclass=PanelType):  # type: ignore[misc]
    """Base of the panels. ``server`` is what is shown, ``state`` its session's state."""

    title = "panel"

    def __init__(self, server: Server) -> None:
        self.server = server
        self.state = server.session
        self._lock = threading.RLock()
        self._boxes: list[ChartBox[Any]] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._closed = False
        super().__init__([])
        self.add_class("wb-panel")
        self.layout.width = "100%"

    # ------------------------------------------------------------ for subclasses

    def _build(self, children: Sequence[Any]) -> None:
        """Puts the widgets in place and shows the state once."""
        sheet = W.HTML(f"<style>{STYLE}</style>", layout=W.Layout(display="none"))
        self.children = (sheet, *children)
        answer_while_busy(self)
        self.refresh()

    def _watched(self) -> list[Any]:
        """The widgets that say how many ``views`` a page has of them."""
        return [box.view for box in self._boxes]

    def _chart(
        self, draw: Callable[[Info], Chart], update: Callable[[Chart, Info], None], info: Info, **clicks: Any
    ) -> ChartBox[Info]:
        box = ChartBox(draw, update, info, self._views_changed, **clicks)
        self._boxes.append(box)
        return box

    @abstractmethod
    def _show(self, snapshot: SessionSnapshot) -> None:
        """Brings the widgets up to date; called with the lock held."""

    @abstractmethod
    def _static(self) -> list[str | Chart]:
        """The blocks of the static page: HTML and charts drawn anew."""

    @abstractmethod
    def _text(self) -> str:
        """The numbers as text."""

    def _command(
        self, name: str, action: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> Command | None:
        """Queues work for the session's command thread; ``done`` or ``failed`` is then called with the lock held.

        None where the session takes no more commands: ``failed`` has been called then.
        """

        def work() -> Any:
            try:
                result = action()
            except Exception as error:
                with self._lock:
                    failed(error)
                raise
            with self._lock:
                done(result)
            return result

        try:
            return self.state.submit(name, work)
        except WorkbenchError as error:
            with self._lock:
                failed(error)
            return None

    # ------------------------------------------------------------ life

    def refresh(self) -> None:
        """Shows the state as it is now."""
        snapshot = self.state.snapshot()
        with self._lock:
            if not self._closed:
                self._show(snapshot)

    @property
    def subscribed(self) -> bool:
        """Whether the panel follows the session: only while a page shows it."""
        return self._unsubscribe is not None

    def _views_changed(self) -> None:
        looked_at = any(view.views for view in self._watched())
        with self._lock:
            if looked_at and self._unsubscribe is None and not self._closed:
                self._unsubscribe = self.state.subscribe(self.refresh)
        if not looked_at:
            self._leave()

    def _leave(self) -> None:
        """Never with the lock held: leaving waits for a refresh under way, which may wait for the lock."""
        with self._lock:
            leave, self._unsubscribe = self._unsubscribe, None
        if leave is not None:
            leave()

    def close(self) -> None:
        """Takes the panel out of the page; work that it started goes on."""
        with self._lock:
            self._closed = True
        self._leave()
        for view in self._watched():
            view.close()
        super().close()

    # ------------------------------------------------------------ without a page

    def to_html(self, path: str | Path | None = None) -> str:
        """The panel as one static page that needs no kernel and no network; written to ``path`` if one is given."""
        from workbench.panels.static import render_blocks

        with self._lock:
            body, head = render_blocks(self._static())
        text = page(f"{self.title}: {self.server.name}", body, head)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def __repr__(self) -> str:
        with self._lock:
            return self._text()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The live panel, and for a saved notebook without a kernel the numbers as text and a static picture."""
        from workbench.panels.static import picture

        bundle = super()._repr_mimebundle_(**kwargs)
        with self._lock:
            bundle.update({"text/plain": self._text(), "text/html": picture(self._static())})
        return bundle


def stale_badge(snapshot: SessionSnapshot) -> str:
    """A warning where what is shown is old or the server does not answer; empty otherwise."""
    if snapshot.error:
        return (
            chip("no fresh data", "bad", snapshot.error)
            + f' <span class="wb-muted">{escape(snapshot.error[:160])}</span>'
        )
    if snapshot.age_s > STALE_AFTER_S:
        return chip(f"stale: {snapshot.age_s:.0f} s old", "warn")
    return ""


def error_html(error: BaseException) -> str:
    """An error as people should read it: what, where, what to do."""
    if isinstance(error, WorkbenchError):
        lines = [f"<b>{escape(error.message)}</b>"]
        lines += [f'<span class="wb-muted">{escape(text)}</span>' for text in (error.where, error.hint) if text]
        return chip("failed", "bad") + " " + "<br>".join(lines)
    return chip("failed", "bad") + f" <b>{escape(type(error).__name__)}</b>: {escape(error)}"
