"""What of the FIL backend runs in a process of its own: files that need numpy and no part of the workbench."""
