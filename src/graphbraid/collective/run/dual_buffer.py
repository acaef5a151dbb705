"""DualBuffer: where each step of an epoch is, between being nobody's and being trained.

The state machine of MorphGL's dual-buffer schedule (section 4): steps of route 0 go through a host buffer
over the link, steps of route 1 are made where they are trained; both fill device buffers in step order.
Nothing here waits, locks or runs: a claim says what may begin now, and the caller says what ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphbraid.collective.plan.routes import CPU, GPU, Routes
from graphbraid.sampling.minibatch import MiniBatch


class DualBuffer:
    """The steps of a run. Positions count from its first.

    Args:
        routes: of each position.
        cbs: host buffers.
        gbs: device buffers.
        most_cbs: host buffers that there may be later.
        most_gbs: the same of device buffers.
    """

    def __init__(self, routes: Routes, *, cbs: int, gbs: int, most_cbs: int, most_gbs: int) -> None:
        self.cbs, self.gbs, self.most_cbs, self.most_gbs = cbs, gbs, most_cbs, most_gbs
        self.num_steps, self.trained = len(routes), 0
        self.held = 0
        """Host buffers in use."""
        self._routes = bytearray(routes)
        self._next_cpu = 0  # no step of route 0 before it is unclaimed
        self._claimed = 0  # no worker has begun a step from here on
        self._under_way: set[int] = set()  # workers prepare them
        self._prepared: dict[int, MiniBatch] = {}
        self._on_device: dict[int, MiniBatch] = {}
        self._next_transfer = 0
        self._link_free = True
        self._full_at = -1  # the position that device memory last ran out at
        self._has_moved = False

    # ---- host buffers, of route 0

    def claim_preparation(self) -> int | None:
        """The next position to prepare on the CPU, if one is left and a host buffer is free.

        Of steps that :meth:`move` left behind, the one that is transferred next may find all buffers held by
        later ones, which wait for it; it gets one more.
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

    def put_prepared(self, position: int, batch: MiniBatch) -> None:
        """A worker prepared a batch; it waits for the link."""
        self._under_way.discard(position)
        self._prepared[position] = batch

    def prepared(self, position: int) -> MiniBatch:
        """A batch that waits for the link."""
        return self._prepared[position]

    # ---- the link and the device's buffers, in step order

    def claim_transfer(self, route: int) -> int | None:
        """The next position if its transfer may begin now and takes this route; the link is then taken."""
        position = self._next_transfer
        if not self._link_free or position >= self.num_steps or self._routes[position] != route:
            return None
        if position - self.trained >= self.gbs or (route == CPU and position not in self._prepared):
            return None
        self._link_free = False
        self._next_transfer += 1
        return position

    def next_on_device(self) -> int | None:
        """The position that route 1 will claim once the step under way is trained, as things stand."""
        position = self._next_transfer
        if not self._link_free or position >= self.num_steps or self._routes[position] != GPU:
            return None
        return position if position - self.trained <= self.gbs else None

    def put_on_device(self, position: int, batch: MiniBatch) -> None:
        """A transfer ended: its link and its host buffer are free."""
        self._link_free = True
        if self._prepared.pop(position, None) is not None:
            self.held -= 1
        self._on_device[position] = batch

    def shrink(self, position: int) -> bool:
        """A transfer ended for want of device memory: it is tried again later, with fewer buffers.

        Returns:
            Whether there is hope; not where it ran out twice with no other batch there.
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
        """The batch to train, once it is on the device."""
        return self._on_device.pop(position, None)

    def put_trained(self) -> None:
        """The step that was taken is over: its device buffer is free."""
        self.trained += 1

    # ---- routes of the steps nobody has begun

    def horizon(self) -> int:
        """The first position from which on nobody has begun any."""
        return max(self._claimed, self._next_transfer)

    def follow(self, routes: Routes, *, cbs: int, gbs: int) -> None:
        """Give the positions from the horizon on other routes, and change the numbers of buffers."""
        horizon = self.horizon()
        if horizon < self.num_steps:
            self._routes[horizon:] = routes
            self._next_cpu = self._claimed
        self.cbs, self.gbs = cbs, min(gbs, self.most_gbs)

    def move(self, position: int, route: int) -> int:
        """Give a position and all of its route that nobody has begun the other route, for good.

        Args:
            position: its preparation ended without a batch.
            route: which it had.

        Returns:
            How many take the other route now.
        """
        if route == GPU:  # in step order, so none after it has been begun
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
        """Let go of all batches; gives those on the device."""
        self._prepared.clear()
        while self._on_device:
            yield self._on_device.popitem()[1]
