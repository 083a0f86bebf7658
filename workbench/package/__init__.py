"""A model file, module, estimator or function becomes a model directory that Triton loads as it is.

``package(thing, name, example_inputs=..., to=repository)`` -> ``Packaged``.
"""

from workbench.package.packaging import Packaged, package

__all__ = ["Packaged", "package"]
