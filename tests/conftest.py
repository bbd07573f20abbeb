"""Settings for every test."""

import os
import signal

from hypothesis import settings

# The same examples every time: a test that fails, fails for everybody. To look for new
# ones: HYPOTHESIS_PROFILE=explore make test.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_configure() -> None:
    """Let Ctrl-C work as in a terminal, here and in the processes that tests start.

    What a shell starts in the background ignores it, and so would all of them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
