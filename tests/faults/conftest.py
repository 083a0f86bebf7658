"""Engines over repositories of models that fail."""

from __future__ import annotations

from engine_fixtures import make_engine  # noqa: F401
