"""The field that chooses a model, or all of them."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as W

ALL = "all models"


def offer_models(field: W.Dropdown, models: Sequence[str]) -> None:
    """Offers all models and each of these; what is chosen stays, also when it is gone."""
    names = [ALL, *models]
    if field.value not in names:
        names.append(field.value)
    if list(field.options) != names:
        chosen = field.value
        field.options = names
        field.value = chosen
