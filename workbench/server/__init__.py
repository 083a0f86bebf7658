"""HTTP, metrics and the control plane over an engine."""
