"""What the configuration panel says about a draft: what Apply would do, and how it differs from what is there."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.panels.config_check import Draft
from workbench.panels.html import chip, diff_html, escape

if TYPE_CHECKING:
    from workbench.session.results import ConfigureResult, ConfigView

HEAD_STYLE = "padding-left:12px;line-height:28px"
CLASS_TEXT = {
    "none": ("nothing to apply", "off"),
    "live": ("live: applied in place, no request lost", "ok"),
    "instances": ("instances: added or drained in place", "ok"),
    "reload": ("reload: new beside old, swap, old drains", "warn"),
}


@dataclass(frozen=True, slots=True)
class Situation:
    """Where a draft stands: what the server has, whether it differs from that, whether only a file is there."""

    view: ConfigView | None
    draft: Draft
    changed: bool
    file_only: bool
    confirm_save: bool


def plan_html(now: Situation, result: ConfigureResult | None) -> str:
    """What Apply would do (``result`` of a dry run, once it is known), and both differences."""
    parts = []
    if result is not None:
        text, tone = CLASS_TEXT.get(result.change_class, (result.change_class, "warn"))
        reasons = f' <span class="wb-muted">{escape("; ".join(result.reasons))}</span>' if result.reasons else ""
        triton = f'<div class="wb-muted">Real Triton: {escape(result.triton)}</div>' if result.triton else ""
        parts.append(f"<div>Apply is {chip(text, tone)}{reasons}</div>{triton}")
    applied = now.view.text if now.view is not None else ""
    diff = text_diff(applied, now.draft.text) if now.draft.document is not None else ""
    if diff:
        against = "the file" if now.file_only else "what is applied"
        parts.append(f"<b>Draft against {against}</b>{diff_html(diff)}")
        if not now.file_only and not now.changed:
            parts.append(
                '<div class="wb-muted">Only comments or layout differ: Apply carries values, '
                "the file keeps its own text.</div>"
            )
    return "".join(parts) + _unsaved_html(now)


def _unsaved_html(now: Situation) -> str:
    """What Save would write."""
    if now.view is None:
        return ""
    if now.file_only:
        shown = now.draft.document is None or now.confirm_save
        diff = text_diff(now.view.text, now.draft.text) if shown else ""
    else:
        diff = text_diff(now.view.saved_text, now.view.text)
    if not diff:
        return ""
    head = "Save would write this" if not now.confirm_save else "Press again to write this to config.pbtxt"
    against = "the text against the file" if now.file_only else "applied against the file"
    return f"<b>{head}</b> <span class='wb-muted'>({against})</span>{diff_html(diff)}"


def head_html(now: Situation, badge: str) -> str:
    """The line above: epoch, saved or not, draft or not."""
    if now.view is None:
        return badge
    if now.file_only:
        parts = [chip("not loaded: the file is shown", "warn")]
    else:
        parts = [
            f'<span class="wb-muted">config_epoch {now.view.epoch}</span>',
            chip("applied, not saved", "warn") if now.view.dirty else chip("as saved", "ok"),
            chip("draft", "busy") if now.changed else "",
            "" if now.view.editable else chip("read only", "off"),
        ]
    return f'<div class="wb-head" style="{HEAD_STYLE}">{"".join(parts)}{badge}</div>'


def text_diff(before: str, after: str) -> str:
    """A unified diff of two texts, which need not parse; one line of context, so that it stays short."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return "\n".join(lines)
