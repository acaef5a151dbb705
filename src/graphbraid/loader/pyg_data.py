"""SampledData: a mini-batch as a PyG ``Data`` whose values are computed when they are first read.

The module is imported only if PyG is installed and a NeighborLoader yields batches.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.storage import E_KEYS, N_KEYS, GlobalStorage, recursive_apply

from graphbraid.arguments import as_present_device
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.sample import SampledEdges

_LATER = object()
"""Placeholder for a value that the batch computes when it is read."""
_BESIDE = ("blocks", "features", "seed_y", "epoch", "step", "layout", "to_data")
"""Attributes of a mini-batch that are not among the Data's keys: they can be read but are never listed."""


class LazyValues(dict[str, Any]):
    """A dict of a batch's attributes by name, whose values the batch computes when they are first read."""

    def __init__(self, batch: MiniBatch, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.batch = batch

    def is_made(self, name: str) -> bool:
        """Return whether a value has been computed or set."""
        return super().__getitem__(name) is not _LATER

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if value is _LATER:
            value = self[name] = self.batch.value(name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, computing it if needed, or ``default`` if there is none of this name."""
        if name not in self:
            return default
        return self[name]

    def __iter__(self) -> Iterator[str]:  # overridden so that dict(values) and **values read by key
        return super().__iter__()

    def values(self) -> Any:
        """Return the values, all computed."""
        return self.made().values()

    def items(self) -> Any:
        """Return the items, all values computed."""
        return self.made().items()

    def made(self) -> dict[str, Any]:
        """Return a plain dict with all values computed."""
        return {name: self[name] for name in self}

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a value and return it, computing it if needed."""
        if name in self:
            _ = self[name]
        return super().pop(name, *default)

    def move(self, device: torch.device | str, *, non_blocking: bool) -> None:
        """Move all values to a device; those not computed yet are computed there."""
        before = self.batch
        self.batch = before.to(device, non_blocking=non_blocking)
        for name in self:
            value = super().__getitem__(name)
            if value is _LATER:
                continue
            if isinstance(value, Tensor) and before.holds(name, value):
                self[name] = self.batch.value(name)
            else:
                self[name] = recursive_apply(value, lambda t: t.to(device=device, non_blocking=non_blocking))

    def copy(self) -> LazyValues:
        """Return a copy that computes its values independently."""
        return LazyValues(self.batch, {name: super(LazyValues, self).__getitem__(name) for name in self})

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyValues:
        made = copy.deepcopy(self.made(), memo)
        return LazyValues(copy.deepcopy(self.batch, memo), made)

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyValues, (self.batch, self.made())


class LazyStorage(GlobalStorage):
    """PyG's storage over :class:`LazyValues`, which computes as few values as possible."""

    def __contains__(self, name: object) -> bool:
        return name in self._mapping

    def to_dict(self) -> dict[str, Any]:
        """Return all values by name."""
        made: dict[str, Any] = dict(self._mapping.items())
        return made

    @property
    def num_nodes(self) -> int | None:
        """Number of nodes by PyG's rules, without computing a value to count its rows."""
        values = self._mapping
        for name in () if "num_nodes" in values else values:
            if name in N_KEYS and not values.is_made(name):
                return int(values.batch.num_nodes)
            if name in N_KEYS and isinstance(value := values[name], Tensor):
                return int(value.shape[self._parent().__cat_dim__(name, value, self)])
        found: int | None = GlobalStorage.num_nodes.fget(self)
        return found

    @num_nodes.setter
    def num_nodes(self, num_nodes: int | None) -> None:
        self["num_nodes"] = num_nodes

    @property
    def num_edges(self) -> int:
        """Number of edges by PyG's rules, without computing a value to count its columns."""
        values = self._mapping
        if values.batch.layout == "blocks":
            return int(values.batch.num_edges)
        for name in () if "num_edges" in values else values:
            if name in E_KEYS and not values.is_made(name):
                return int(values.batch.num_edges)
            if name in E_KEYS and isinstance(values[name], Tensor):
                return int(values[name].shape[-1 if "index" in name else 0])
        return int(GlobalStorage.num_edges.fget(self))


class SampledData(Data):
    """A mini-batch that is a PyG ``Data``.

    Its attributes are those of the loader's ``data``, restricted to the batch, and ``n_id``, ``e_id``,
    ``input_id``, ``batch_size``, ``num_sampled_nodes`` and ``num_sampled_edges``; they are computed when they
    are first read, and may be set. In addition it has ``blocks``, ``seed_y``, ``features``, ``epoch``,
    ``step`` and ``layout``. If the loader's ``data`` are of a subclass of ``Data``, so is the batch.
    """

    @classmethod
    def of(cls, batch: MiniBatch) -> SampledData:
        """Return a batch as Data; the two share the values that are computed later."""
        given = Data() if batch.template is None else batch.template
        out = _empty(type(given))
        out.__dict__.update(vars(given))
        values = dict.fromkeys(batch.lazy_keys(), _LATER)
        values.pop("blocks", None)
        values.update({name: batch.value(name) for name in batch.constants})
        for name, value in vars(batch).items():
            if name[0] != "_" and name not in _BESIDE and not (name == "n_id" and name in values):
                values[name] = value
        store = LazyStorage.__new__(LazyStorage)
        store.__dict__["_mapping"] = LazyValues(batch, values)
        store._parent = out
        out.__dict__["_store"] = store
        return out

    @property
    def sampled(self) -> MiniBatch:
        """Mini-batch that computes the values."""
        batch: MiniBatch = self._store._mapping.batch
        return batch

    @property
    def sampled_edges(self) -> list[list[SampledEdges]] | None:
        """The sampled edges; None once ``edge_index`` was read or set, since it may have been changed."""
        values: LazyValues = self._store._mapping
        is_made = "edge_index" in values and values.is_made("edge_index")
        return None if is_made else self.sampled.sampled_edges

    def __getattr__(self, name: str) -> Any:
        store = vars(self).get("_store")
        if store is not None and name in (values := store._mapping):  # PyG's way takes three times as long
            return values[name]
        if store is not None and name in _BESIDE:
            return getattr(self.sampled, name)
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise AttributeError(
                f"this mini-batch has no attribute {name!r}; it has {', '.join(self._store._mapping)}"
            ) from None

    def keys(self) -> list[str]:
        """Return the names of all attributes, including those not computed yet."""
        return list(self._store._mapping)

    def _repr_html_(self) -> str:
        from graphbraid.sampling.minibatch.pyg_forms import batch_html

        values: LazyValues = self._store._mapping
        return batch_html(self.sampled, {name: values[name] for name in values if values.is_made(name)})

    @property
    def edge_index(self) -> Any:
        """Edge index as in PyG; in layout ``blocks``, reading it raises an error that names ``blocks``."""
        if "edge_index" not in self._store and self.sampled.layout == "blocks":
            return self.sampled.edge_index
        return super().edge_index

    @edge_index.setter
    def edge_index(self, edge_index: Tensor | None) -> None:
        self._store.edge_index = edge_index

    def to(
        self, device: int | str | torch.device | None, *args: str, non_blocking: bool = False
    ) -> SampledData:
        """Move all attributes, or those named, to a device; those not computed yet are computed there."""
        if args:
            out: SampledData = super().to(device, *args, non_blocking=non_blocking)
            return out
        if device is not None:  # to torch, None means not to move
            named = f"cuda:{device}" if type(device) is int else device
            self._store._mapping.move(as_present_device(named), non_blocking=non_blocking)
        return self

    def cpu(self, *args: str) -> SampledData:
        """Move attributes to the CPU; see :meth:`to`."""
        return self.to("cpu", *args)

    def cuda(self, device: int | str | None = None, *args: str, non_blocking: bool = False) -> SampledData:
        """Move attributes to a CUDA device; see :meth:`to`."""
        return self.to("cuda" if device is None else device, *args, non_blocking=non_blocking)

    def __reduce__(self) -> tuple[Any, ...]:
        return _empty, (type(self).__bases__[-1],), dict(vars(self))


@functools.cache
def _class_for(given: Any) -> type[SampledData]:
    """Return the class of batches whose data have a given class: also a subclass of it."""
    return SampledData if given is Data else type(f"Sampled{given.__name__}", (SampledData, given), {})


def _empty(given: Any) -> SampledData:
    """Return an empty batch of a class, to which a copy adds attributes."""
    made = _class_for(given)
    return made.__new__(made)
