"""Results to a production bundle."""

from workbench.export.bundle import ExportedModel, ExportResult, ModelToExport, export_repository

__all__ = ["ExportResult", "ExportedModel", "ModelToExport", "export_repository"]
