"""Results to a production bundle."""
