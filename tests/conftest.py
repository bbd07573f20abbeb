"""Settings for every test."""

import os

from hypothesis import settings

# The same examples every time: a test that fails, fails for everybody. To look for new
# ones: HYPOTHESIS_PROFILE=explore make test.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
