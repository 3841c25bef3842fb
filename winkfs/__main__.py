"""`winkfs` and `python -m winkfs`."""

import gc
import os
import signal
import sys

GC_THRESHOLD = 200_000  # allocations between two collections of cyclic garbage


def main() -> int:
    """Run the command line -> exit status. Ctrl-C may come during the imports, too."""
    try:
        return _run()
    finally:
        # All is done, and the status is known: when the interpreter ends, it would be lost.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A KeyboardInterrupt that passes through `exec` of a text, by which classes are made, marks
        # the process: at its end it would kill itself by SIGINT, though the exception was caught.
        # CPython removes the mark when it runs the next text.
        exec("")
        # The interpreter would search all objects for cyclic garbage, only to end then.
        gc.freeze()


def _run() -> int:
    try:
        # Otherwise numpy's matrix library, which is not used here, starts a thread for each
        # processor, and all of them spin for a while.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # Cyclic garbage is rare here, and objects are many: the default threshold would collect too
        # often. The imports of most commands stay below this one.
        gc.set_threshold(GC_THRESHOLD, 20)
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
