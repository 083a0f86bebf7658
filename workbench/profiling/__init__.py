"""Load, measurement and sweeps against a Target."""
