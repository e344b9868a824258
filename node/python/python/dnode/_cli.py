"""The command ``dnode`` of the package: the program of the Rust workspace."""

import signal
import sys

from dnode import _native


def main() -> int:
    """Runs the program with the words of the command line; returns its exit status."""
    # The program has handlers of its own; until they are there Ctrl-C ends it at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.program(["dnode", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
