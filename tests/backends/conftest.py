"""Fixtures of the tests of backends."""

from backend_fixtures import computed, device, launches, two_threads  # noqa: F401
