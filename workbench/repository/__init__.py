"""Model repositories on disk: directories, versions, what changed, and the example inputs of a model; read only."""
