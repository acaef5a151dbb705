"""An independent check of a schedule against MorphGL's Eq. 1 to 4, from its operations alone."""

from collections import Counter
from itertools import pairwise

SLACK = 1e-9


def check_schedule(ops, routes, durations, *, cbs, gbs, workers):
    """Raise AssertionError if any rule is broken. Shares no code with the simulator."""
    by_step = {}
    for op in ops:
        assert (op.step, op.stage) not in by_step, f"{op.stage} of step {op.step} runs twice"
        by_step[op.step, op.stage] = op
    for step, route in enumerate(routes):
        stages = {stage for s, stage in by_step if s == step}
        assert stages == ({"uva", "model"} if route else {"cpu", "dma", "model"}), (step, stages)
    for (step, stage), op in by_step.items():
        wanted = getattr(durations, stage)[step]
        assert abs(op.end - op.start - wanted) <= SLACK * max(1.0, op.end), (op, wanted)
        assert op.start >= 0
    _check_dependencies(by_step, routes)
    needs = {"cpu": (), "dma": ("link",), "uva": ("link", "device"), "model": ("device",)}
    for resource in ("link", "device"):
        _check_one_at_a_time([op for op in ops if resource in needs[op.stage]])
    assert all(0 <= op.worker < workers for op in ops)
    for worker in range(workers):
        _check_one_at_a_time([op for op in ops if op.stage == "cpu" and op.worker == worker])
    _check_buffers(by_step, routes, cbs, gbs)
    trained = [op.step for op in sorted(ops, key=lambda op: op.start) if op.stage == "model"]
    assert trained == sorted(trained), "steps are not trained in their order"


def _check_dependencies(by_step, routes):  # Eq. 3
    for step, route in enumerate(routes):
        transfer = by_step[step, "uva" if route else "dma"]
        if not route:
            assert transfer.start >= by_step[step, "cpu"].end - SLACK
        assert by_step[step, "model"].start >= transfer.end - SLACK


def _check_one_at_a_time(ops):  # Eq. 1 and 2
    for before, after in pairwise(sorted(ops, key=lambda op: (op.start, op.end))):
        assert after.start >= before.end - SLACK, (before, after)


def _check_buffers(by_step, routes, cbs, gbs):  # Eq. 4, and the memory held
    waiting_host, waiting_device, held_host, held_device = [], [], [], []
    for step, route in enumerate(routes):
        model = by_step[step, "model"]
        transfer = by_step[step, "uva" if route else "dma"]
        waiting_device.append((transfer.end, model.start))
        held_device.append((transfer.start, model.end))
        if not route:
            batching = by_step[step, "cpu"]
            waiting_host.append((batching.end, transfer.start))
            held_host.append((batching.start, transfer.end))
    for spans, most in ((waiting_host, cbs), (held_host, cbs), (waiting_device, gbs), (held_device, gbs)):
        assert _most_at_once(spans) <= most


def _most_at_once(spans):
    changes = Counter()
    for start, end in spans:
        changes[round(start, 9), 1] += 1
        changes[round(end, 9), 0] -= 1  # what ends at a time makes room for what starts then
    count = most = 0
    for _, change in sorted(changes.items()):
        count += change
        most = max(most, count)
    return most
