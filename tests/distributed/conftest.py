"""Ranks that are threads of one process."""

import pytest
from tests.distributed.whole import as_processes


@pytest.fixture
def threads(monkeypatch):
    """Threads do as processes do."""
    as_processes(monkeypatch)
