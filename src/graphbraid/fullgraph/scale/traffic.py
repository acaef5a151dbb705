"""Traffic: a rank's link, which carries one thing after the other while the rank's cores compute."""

from __future__ import annotations

from collections import deque


class Traffic:
    """What is on its way from a rank and to it, one thing after the other, moved by the cores."""

    def __init__(self) -> None:
        self.sent = 0.0
        """Seconds that the link has been busy, or will have been."""
        self.moved = 0.0
        """Seconds that the cores take of these to move the bytes."""
        self._queue: deque[tuple[float, float]] = deque()
        """When each thing on its way will have arrived, and the share of the cores that it takes."""

    def send(self, now: float, seconds: float, moving_seconds: float) -> float:
        """Send something after all before it, no faster than the cores move it; return when it arrives."""
        seconds = max(seconds, moving_seconds)
        self.sent += seconds
        self.moved += moving_seconds
        end = max(now, self._queue[-1][0] if self._queue else now) + seconds
        self._queue.append((end, moving_seconds / seconds if seconds else 0.0))
        return end

    def computed(self, now: float, seconds: float) -> float:
        """Return when the cores, which also move what is on its way, have computed for so long."""
        while self._queue:
            end, taken = self._queue[0]
            room = max(0.0, end - now) * (1 - taken)
            if seconds < room:
                return now + seconds / (1 - taken)
            now, seconds = max(now, end), seconds - room
            self._queue.popleft()
        return now + seconds

    def waited(self, now: float, until: float | None = None) -> float:
        """Return when what arrives until then, or everything, has arrived."""
        while self._queue and (until is None or self._queue[0][0] <= until):
            now = max(now, self._queue.popleft()[0])
        return now


__all__ = ["Traffic"]
