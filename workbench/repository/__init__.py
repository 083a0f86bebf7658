"""Model directories on disk."""
