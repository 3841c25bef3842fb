"""`winkfs` and `python -m winkfs`."""

import gc
import os
import sys

ALLOCATED = 50_000  # objects between two looks for cycles of those that are garbage


def main() -> int:
    """Run the command line -> exit status. Ctrl-C may come during the imports, too."""
    try:
        # Else numpy's library for matrices, which nothing here uses, starts a thread a processor;
        # each spins for a while: 0.08 s a command.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # There are few such cycles here, and many objects: a look at each 700, which is usual,
        # takes 5 % of the time of a mount that is written to, and 3 % of that of `pack`.
        gc.set_threshold(ALLOCATED, 20)
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
