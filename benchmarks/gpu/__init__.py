"""The check of one NVIDIA machine: steps, what they need, the report, and the archive that runs them elsewhere."""
