"""Runs models: lifecycle, instances, statistics, live configuration."""
