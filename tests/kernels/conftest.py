"""Fixtures of the tests of kernels."""

from backend_fixtures import computed, device, launches, two_threads  # noqa: F401
