"""``python -m dnode.launch -n 2 script.py …`` runs a script in several peers on this machine."""

import sys

from dnode._launch import launch, main

__all__ = ["launch"]

if __name__ == "__main__":
    sys.exit(main())
