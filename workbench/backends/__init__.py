"""One file a framework; imported only when a model needs it."""
