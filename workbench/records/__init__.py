"""What a request and a run leave behind, and the run store."""
