"""How several processes share a test run: whole units of work, in order, whatever becomes of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdist.scheduler import LoadScopeScheduling


class Units(LoadScopeScheduling):
    """Give out units of work; a test that ends its process has failed and is not run again."""

    def __init__(self, config: Any, log: Any, unit_of: Callable[[str], str]) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._unit_of = unit_of

    def _split_scope(self, nodeid: str) -> str:
        return self._unit_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Take a process out of the run; return the test during which it ended, if one was left to it."""
        work = self.assigned_work.pop(node)
        left = [(unit, test) for unit, tests in work.items() for test, done in tests.items() if not done]
        for unit, test in left[1:]:
            self.workqueue.setdefault(unit, {})[test] = False
        for other in self.assigned_work:
            self._reschedule(other)
        return left[0][1] if left else None

    def _reschedule(self, node: Any) -> None:
        """Give a process its next units: it begins a test when it knows another or that none follows."""
        if node.shutting_down:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()
