"""KServe v2 messages and tensors, and how they are written on the wire; no transport."""
