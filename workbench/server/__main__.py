"""``python -m workbench.server``."""

import sys

from workbench.server.main import main

if __name__ == "__main__":
    sys.exit(main())
