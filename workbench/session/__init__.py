"""Serve, Engine, connect, attach: the public verbs, and the state that panels show."""
