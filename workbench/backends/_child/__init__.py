"""What runs inside a Python model's process.

The modules here need only the standard library and numpy (``ml_dtypes`` where BF16 is used), because the interpreter
that runs them may be another one than the server's, without the workbench installed: ``python main.py FD`` makes its
own room of these files. They run on Python 3.9 and later. In thread mode the server imports the same modules, so that
a model meets one implementation of ``triton_python_backend_utils`` in both places.
"""
