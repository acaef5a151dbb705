"""The dual-buffer state machine alone: whatever happens when, each step is trained once, in its order."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.suites import examples

from graphbraid.collective.plan.simulator import CPU, GPU
from graphbraid.collective.run.dual_buffer import DualBuffer

ROUTES = st.binary(min_size=1, max_size=30).map(lambda drawn: bytes(b & 1 for b in drawn))


class Run:
    """Threads as lists of what is under way; what happens next is drawn."""

    def __init__(self, routes, cbs, gbs):
        self.steps = DualBuffer(routes, cbs=cbs, gbs=gbs, most_cbs=cbs + 1, most_gbs=gbs + 1)
        self.preparing, self.on_link, self.training = [], [], []
        self.waiting, self.trained, self.made = 0, [], []
        self.lost = None

    def moves(self):
        """What can happen now, by name."""
        steps = self.steps
        found = []
        position = steps.claim_preparation()
        if position is not None:
            self.preparing.append(position)
        found += [("prepared", p) for p in self.preparing]
        for route in (CPU, GPU):
            position = steps.claim_transfer(route)
            if position is not None:
                assert position - steps.trained < steps.gbs
                self.on_link.append((position, route))
        found += [("transferred", p) for p, _ in self.on_link]
        if not self.training and (batch := steps.take(len(self.trained))) is not None:
            assert batch == f"batch {len(self.trained)}"
            self.training.append(len(self.trained))
        found += [("trained", p) for p in self.training]
        return found

    def do(self, what, position):
        steps = self.steps
        if what == "prepared":
            self.preparing.remove(position)
            steps.put_prepared(position, f"batch {position}")
        elif what == "transferred":
            [(_, route)] = self.on_link
            self.on_link.clear()
            if route == CPU:
                assert steps.prepared(position) == f"batch {position}"
            steps.put_on_device(position, f"batch {position}")
        else:
            self.training.remove(position)
            self.trained.append(position)
            steps.put_trained()

    def run_out(self):
        """The transfer on the link finds no device memory."""
        [(position, _)] = self.on_link
        self.on_link.clear()
        return self.steps.shrink(position)

    def lose(self, route):
        """What the route's operator has under way ends without a batch."""
        self.lost = route
        if route == GPU:
            [(position, _)] = self.on_link
            self.on_link.clear()
            self.steps.move(position, GPU)
        else:
            while self.preparing:
                self.steps.move(self.preparing.pop(), CPU)


@settings(max_examples=examples(300))
@given(routes=ROUTES, cbs=st.integers(1, 4), gbs=st.integers(1, 4), data=st.data())
def test_each_step_is_trained_once_in_order_within_the_buffers(routes, cbs, gbs, data):
    run = Run(routes, cbs, gbs)
    while len(run.trained) < len(routes):
        moves = run.moves()
        assert moves, "nothing can happen, and steps are left"
        assert run.steps.held <= cbs + 1 + (run.lost is not None)
        what, position = data.draw(st.sampled_from(moves))
        event = data.draw(st.sampled_from(["as planned"] * 8 + ["out of memory", "lost", "new plan"]))
        if event == "out of memory" and run.on_link:
            was_alone, before = run.on_link[0][0] == run.steps.trained, run.steps._full_at
            assert run.run_out() == (not (was_alone and before == run.steps._next_transfer))
        elif event == "lost" and run.lost is None and [r for _, r in run.on_link] == [GPU]:
            run.lose(GPU)
        elif event == "lost" and run.lost is None and run.preparing:
            run.lose(CPU)
        elif event == "new plan" and run.lost is None:
            left = len(routes) - run.steps.horizon()
            drawn = bytes(data.draw(st.lists(st.integers(0, 1), min_size=left, max_size=left)))
            run.steps.follow(drawn, cbs=data.draw(st.integers(1, cbs + 1)), gbs=gbs)
        else:
            run.do(what, position)
    assert run.trained == list(range(len(routes)))
    assert run.steps.held == 0
    assert list(run.steps.clear()) == []


def test_what_is_left_on_the_device_is_given_back_to_be_freed():
    steps = DualBuffer(bytes([GPU, GPU, CPU]), cbs=1, gbs=3, most_cbs=1, most_gbs=3)
    for position in (0, 1):
        assert steps.claim_transfer(GPU) == position
        assert steps.claim_transfer(GPU) is None  # the link is taken
        steps.put_on_device(position, f"batch {position}")
    assert steps.claim_preparation() == 2
    steps.put_prepared(2, "batch 2")
    assert sorted(steps.clear()) == ["batch 0", "batch 1"]
    assert list(steps.clear()) == []


def test_memory_that_runs_out_twice_for_one_batch_alone_is_without_hope():
    steps = DualBuffer(bytes([GPU] * 4), cbs=1, gbs=8, most_cbs=1, most_gbs=8)
    assert steps.claim_transfer(GPU) == 0
    assert steps.shrink(0)
    assert steps.gbs == steps.most_gbs == 1
    assert steps.claim_transfer(GPU) == 0
    assert not steps.shrink(0)
