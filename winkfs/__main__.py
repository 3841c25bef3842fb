"""`winkfs` and `python -m winkfs`."""

import os
import sys


def main() -> int:
    """Run the command line -> exit status. Ctrl-C may come during the imports, too."""
    # Else numpy's library for matrices, which nothing here uses, starts a thread a processor; each
    # spins for a while: 0.08 s a command.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from winkformats.disk.room import save_memory

        save_memory()
        from winkfs.errors import deliver_again

        sys.unraisablehook = deliver_again
        from winkfs.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("winkfs: interrupted\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
