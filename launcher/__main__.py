"""`python -m byteps.launcher`: the same as `bpslaunch`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
