"""A device made of the host: copies what goes there, records the calls into torch and replays those."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphbraid.fullgraph.device import Device, NotRecordedError

WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::equal"}


class Recorder(TorchDispatchMode):
    """The calls of torch's operators, with the very tensors they took and gave.

    As under a CUDA graph, numbers stay as they were, tensors are read anew, and waiting for a value fails;
    what the recorded calls wrote is undone.
    """

    def __init__(self):
        super().__init__()
        self.calls, self._before = [], {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name().split(".")[0] in WAITS:
            raise NotRecordedError(f"{func.name()} reads a value on the host")
        self._keep(func, args, kwargs or {})
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def _keep(self, func, args, kwargs):
        """What a call will write over, as it was before the first to do so."""
        for i, argument in enumerate(func._schema.arguments):
            value = kwargs.get(argument.name, args[i] if i < len(args) else None)
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tree_leaves(value):
                    storage = tensor.untyped_storage()
                    self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))

    def undo(self):
        for storage, before in self._before.values():
            storage.copy_(before)

    def replay(self):
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            for before, after in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(before, torch.Tensor) and before.data_ptr() != after.data_ptr():
                    before.copy_(after)


class FakeDevice(Device):
    """Records only where the twins run (the compiled kernels are no operators of torch).

    Args:
        free: what :meth:`free_bytes` says.
        clock: seconds of the runs to be timed, in turn; 1 where there are no more.
    """

    place = torch.device("cpu")
    is_host = False
    name = "fake"

    def __init__(self, free=None, clock=()):
        self.free, self.clock = free, list(clock)
        self.num_replays = self.num_records = self.num_timed = 0

    def free_bytes(self):
        return self.free

    def seconds(self, run):
        run()
        self.num_timed += 1
        return self.clock.pop(0) if self.clock else 1.0

    def record(self, run):
        recorder = Recorder()
        with recorder:
            run()
        recorder.undo()
        self.num_records += 1

        def replay():
            self.num_replays += 1
            recorder.replay()

        return replay
