"""Settings and fixtures that every test shares."""

import hypothesis

# The machines are shared and slow at times: a deadline per example would fail by chance.
hypothesis.settings.register_profile("graphbraid", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("graphbraid")
