"""What the tests need from the process that runs them."""

from __future__ import annotations

import signal

# A shell makes its background jobs ignore SIGINT, and children inherit that: no program that a test
# interrupts would notice. A handler, unlike SIG_IGN, is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
