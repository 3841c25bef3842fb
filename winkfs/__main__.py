"""`winkfs` and `python -m winkfs`."""

import sys


def main() -> int:
    """Run the command line -> exit status. Ctrl-C may come during the imports, too."""
    try:
        from winkfs.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("winkfs: interrupted\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
