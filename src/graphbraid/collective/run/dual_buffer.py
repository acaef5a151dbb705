"""DualBuffer: the state of each step of an epoch, from unclaimed to trained.

This is the state machine of MorphGL's dual-buffer schedule (section 4). Batches of route 0 go through a host
buffer and over the link; batches of route 1 are prepared on the device; both fill device buffers in step
order. Nothing here waits, locks or runs work: a claim returns what may begin now, and the caller reports what
has ended.
"""

from collections.abc import Iterator

from graphbraid.collective.plan.simulator import CPU, GPU, Routes
from graphbraid.sampling.minibatch.mini_batch import MiniBatch


class DualBuffer:
    """The steps of a run, numbered by position from its first step.

    ``most_cbs`` and ``most_gbs`` are the largest numbers of host and device buffers that there may be later.
    """

    def __init__(self, routes: Routes, *, cbs: int, gbs: int, most_cbs: int, most_gbs: int) -> None:
        self.cbs, self.gbs, self.most_cbs, self.most_gbs = cbs, gbs, most_cbs, most_gbs
        self.num_steps, self.trained = len(routes), 0
        self.held = 0
        """Number of host buffers in use."""
        self._routes = bytearray(routes)
        self._next_cpu = 0  # all steps of route 0 before it are claimed
        self._claimed = 0  # no worker has begun a step from here on
        self._under_way: set[int] = set()  # positions that workers are preparing
        self._prepared: dict[int, MiniBatch] = {}
        self._on_device: dict[int, MiniBatch] = {}
        self._next_transfer = 0
        self._link_free = True
        self._full_at = -1  # the position that device memory last ran out at
        self._has_moved = False

    # ---- host buffers (route 0)

    def claim_preparation(self) -> int | None:
        """Claim the next position to prepare on the CPU; None if there is none or no host buffer is free.

        After :meth:`move`, all buffers may be held by later steps that wait for the step to be transferred
        next. That step then gets one extra buffer.
        """
        found = self._routes.find(CPU, self._next_cpu)
        while found in self._under_way or found in self._prepared:
            found = self._routes.find(CPU, found + 1)
        self._next_cpu = self.num_steps if found < 0 else found
        is_waited_for = self._has_moved and found == self._next_transfer
        if found < 0 or self.held >= self.cbs + is_waited_for:
            return None
        self._next_cpu = found + 1
        self._claimed = max(self._claimed, found + 1)
        self.held += 1
        self._under_way.add(found)
        return found

    def next_to_prepare(self, count: int) -> list[int]:
        """Return up to ``count`` positions that workers will claim next, as the routes are now."""
        found: list[int] = []
        position = self._next_cpu - 1
        while len(found) < count and (position := self._routes.find(CPU, position + 1)) >= 0:
            if position not in self._under_way and position not in self._prepared:
                found.append(position)
        return found

    def put_prepared(self, position: int, batch: MiniBatch) -> None:
        """Record that a worker has prepared a batch, which now waits for the link."""
        self._under_way.discard(position)
        self._prepared[position] = batch

    def prepared(self, position: int) -> MiniBatch:
        """Return a batch that waits for the link."""
        return self._prepared[position]

    # ---- the link and the device buffers, in step order

    def claim_transfer(self, route: int) -> int | None:
        """Claim the link for the next position if its transfer is on ``route`` and may begin; else None."""
        position = self._next_transfer
        if not self._link_free or position >= self.num_steps or self._routes[position] != route:
            return None
        if position - self.trained >= self.gbs or (route == CPU and position not in self._prepared):
            return None
        self._link_free = False
        self._next_transfer += 1
        return position

    def next_on_device(self) -> int | None:
        """Return the position that route 1 can claim once the current step is trained, or None."""
        position = self._next_transfer
        if not self._link_free or position >= self.num_steps or self._routes[position] != GPU:
            return None
        return position if position - self.trained <= self.gbs else None  # one will be free then

    def put_on_device(self, position: int, batch: MiniBatch) -> None:
        """Record that a transfer has ended, which frees the link and its host buffer."""
        self._link_free = True
        if self._prepared.pop(position, None) is not None:
            self.held -= 1
        self._on_device[position] = batch

    def shrink(self, position: int) -> bool:
        """Record that a transfer failed for lack of device memory; it is tried again with fewer buffers.

        Returns:
            Whether to try again: False if memory ran out twice for this position with no other batch there.
        """
        self._link_free, self._next_transfer = True, position
        others = position - self.trained
        if others == 0 and self._full_at == position:
            return False
        self._full_at = position
        self.gbs = self.most_gbs = max(1, min(self.gbs // 2, others))
        return True

    # ---- training

    def take(self, position: int) -> MiniBatch | None:
        """Return the batch to train, or None if it is not on the device yet."""
        return self._on_device.pop(position, None)

    def put_trained(self) -> None:
        """Record that the step taken last was trained, which frees its device buffer."""
        self.trained += 1

    # ---- routes of the steps that have not begun

    def horizon(self) -> int:
        """Return the first position from which on no step has begun."""
        return max(self._claimed, self._next_transfer)

    def follow(self, routes: Routes, *, cbs: int, gbs: int) -> None:
        """Set the routes of the positions from the horizon on, and the numbers of buffers."""
        horizon = self.horizon()
        if horizon < self.num_steps:
            self._routes[horizon:] = routes
            self._next_cpu = self._claimed
        self.cbs, self.gbs = cbs, min(gbs, self.most_gbs)

    def move(self, position: int, route: int) -> int:
        """Move a position, and all positions of its route that have not begun, to the other route for good.

        Args:
            position: position whose preparation ended without a batch.
            route: route that it was on.

        Returns:
            Number of positions moved.
        """
        if route == GPU:  # transfers are in step order, so none after it has begun
            self._link_free, self._next_transfer = True, position
        else:
            self._under_way.discard(position)
            self.held -= 1
        begun = self._under_way.union(self._prepared)
        of_route = [p for p in range(self._next_transfer, self.num_steps) if self._routes[p] == route]
        moved = [p for p in of_route if p not in begun]
        for p in moved:
            self._routes[p] = CPU + GPU - route
        self._next_cpu, self._has_moved = self._next_transfer, True
        self.cbs, self.gbs = self.most_cbs, self.most_gbs
        return len(moved)

    def clear(self) -> Iterator[MiniBatch]:
        """Drop all batches, yielding those on the device."""
        self._prepared.clear()
        while self._on_device:
            yield self._on_device.popitem()[1]
