"""What ranks make of the models of ``argument_models``."""

import torch
from tests.train.argument_models import CASES, NODES

from graphbraid import Graph
from graphbraid.errors import ConfigError
from graphbraid.train import Trainer

BATCHES = {"fanouts": (-1, -1), "hops": 1, "batch_size": NODES, "eval_batch_size": NODES}
WHOLE = {
    "epochs": 1,
    "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "test_at_end": False,
    "eval_every": 0,
}
OPTIONS = {"sampled": WHOLE | BATCHES, "full": WHOLE}
"""A step of all neighbours, by mode."""


def trained(comm, mode: str) -> dict[str, object]:
    """The outputs after a step together, or the refusal, of every model for graphs of one type."""
    found: dict[str, object] = {}
    for name in [name for name in CASES if not name.startswith("typed")]:
        case = CASES[name]
        data, model = case.data(), case.model()
        try:
            Trainer(model, Graph.from_pyg(data), mode=mode, **OPTIONS[mode]).fit()
            found[name] = case.plain(model, data).tolist()
        except ConfigError as error:
            found[name] = str(error)
    return found
