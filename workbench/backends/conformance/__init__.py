"""Checks that every backend must pass, for the built-in ones and for those of a third party.

A backend's tests describe a few of its models in a ``Kit`` and have them checked, with pytest::

    from workbench.backends.conformance import BackendConformance, Kit, ModelCase

    class TestMine(BackendConformance):
        def kit(self) -> Kit:
            return Kit("mine", model=ModelCase(...), ...)

or without it: ``conformance_problems(kit, folder)`` gives what is wrong, check by check. ``tests/backends`` of the
workbench has the kits of the built-in backends as examples. No engine is needed: the checks speak to the backend as an
engine does, through ``workbench.backends.base``.
"""

from workbench.backends.conformance.kit import Kit, ModelCase
from workbench.backends.conformance.suite import CHECKS, BackendConformance, conformance_problems

__all__ = ["CHECKS", "BackendConformance", "Kit", "ModelCase", "conformance_problems"]
