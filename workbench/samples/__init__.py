"""The sample models: how their weights and graphs are made."""
