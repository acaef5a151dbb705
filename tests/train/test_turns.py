"""Threads that share a Trainer: they take turns, and do not wait for a training run."""

import pytest
import torch
from tests.extras import in_threads
from tests.train.communities import community_graph

from graphbraid import Trainer, nn
from graphbraid.errors import ConfigError
from graphbraid.train.callbacks import Callback

GRAPH = community_graph()


def trainer(mode, **options):
    torch.manual_seed(0)
    model = nn.GCN(GRAPH.num_features, 8, GRAPH.num_classes, dropout=0.5)
    return Trainer(model, GRAPH, mode=mode, epochs=2, test_at_end=False, **options)


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_predictions_from_several_threads_are_right(mode):
    trained = trainer(mode)
    trained.fit()
    expected, score = trained.predict(), trained.evaluate("val")
    for _ in range(10):
        *outputs, scored = in_threads(*[trained.predict] * 3, lambda: trained.evaluate("val"))
        assert all(torch.equal(found, expected) for found in outputs)
        assert scored == score


class Meanwhile(Callback):
    """Predicts within a run, from the run's own thread and from another."""

    def __init__(self):
        self.error, self.shape = None, None

    def on_epoch_end(self, trainer, metrics):
        self.shape = trainer.predict([0, 1]).shape
        in_threads(lambda: self.ask(trainer))

    def ask(self, trainer):
        try:
            trainer.predict([0])
        except ConfigError as error:
            self.error = error


def test_another_thread_does_not_predict_while_one_trains():
    meanwhile = Meanwhile()
    trained = trainer("full", callbacks=[meanwhile])
    trained.fit()
    assert meanwhile.shape == (2, GRAPH.num_classes)
    assert "another thread is in this Trainer's fit()" in str(meanwhile.error)
    assert trained.predict([0]).shape == (1, GRAPH.num_classes)
