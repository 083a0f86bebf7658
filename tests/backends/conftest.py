"""Engines for the tests of backends that need one."""

from __future__ import annotations

from engine_fixtures import make_engine  # noqa: F401
