"""Building: a model becomes another form of itself (an engine, an ONNX file, OpenVINO's, TorchScript, AOTInductor).

``build(model, to=..., repository=...)`` -> ``Built``. Steps: ``source`` (what is built from), ``forms`` (one function
for each target; ``tensorrt_form`` and ``torch_forms`` are their larger parts), ``config`` (the new config.pbtxt),
``drift`` (whether it answers alike), ``build`` (the order of these, and the files).
"""

from workbench.package.building.build import build
from workbench.package.building.options import TARGETS, BuildOptions, Target
from workbench.package.building.result import Built

__all__ = ["TARGETS", "BuildOptions", "Built", "Target", "build"]
