"""Pure batching decisions: no I/O, no thread, no clock."""
