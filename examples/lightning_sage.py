"""PyTorch Lightning trains a PyTorch Geometric model on mini-batches of graphbraid's loader."""

import logging
import warnings

import torch
import torch.nn.functional as F
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import graphbraid
from graphbraid.loader import NeighborLoader

warnings.filterwarnings("ignore", message=".*does not have many workers")  # threads, of which one is enough
warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated")  # Lightning's own
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Batches(LightningDataModule):
    """PyG's data in batches; under Lightning's DDP each process gets its share of the seeds."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.data = data

    def loader(self, nodes: torch.Tensor, *, shuffle: bool = False) -> NeighborLoader:
        return NeighborLoader(self.data, [10, 5], nodes, batch_size=256, shuffle=shuffle)

    def train_dataloader(self) -> NeighborLoader:
        return self.loader(self.data.train_mask, shuffle=True)

    def val_dataloader(self) -> NeighborLoader:
        return self.loader(self.data.val_mask)

    def test_dataloader(self) -> NeighborLoader:
        return self.loader(self.data.test_mask)

    def predict_dataloader(self) -> NeighborLoader:
        return self.loader(self.data.test_mask)


class Classifier(LightningModule):
    """A plain model of PyG's and its steps."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.model = GraphSAGE(in_channels, 64, num_layers=2, out_channels=num_classes, dropout=0.5)

    def forward(self, batch: Data) -> torch.Tensor:
        return self.model(batch.x, batch.edge_index)[: batch.batch_size]  # rows of the seeds

    def step(self, batch: Data, name: str) -> torch.Tensor:
        out, y = self(batch), batch.y[: batch.batch_size]
        accuracy = (out.argmax(dim=1) == y).float().mean()
        self.log(f"{name}_accuracy", accuracy, batch_size=batch.batch_size, on_step=False, on_epoch=True)
        return F.cross_entropy(out, y)

    def training_step(self, batch: Data, _: int) -> torch.Tensor:
        return self.step(batch, "train")

    def validation_step(self, batch: Data, _: int) -> None:
        self.step(batch, "val")

    def test_step(self, batch: Data, _: int) -> None:
        self.step(batch, "test")

    def predict_step(self, batch: Data, _: int) -> torch.Tensor:
        return self(batch).argmax(dim=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    torch.manual_seed(0)  # of the model and of the loaders' draws
    data = graphbraid.datasets.load("braid-100k").to_pyg()  # any PyG Data will do
    model, batches = Classifier(data.num_features, int(data.y.max()) + 1), Batches(data)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, batches)
    print(f"validation accuracy {float(trainer.callback_metrics['val_accuracy']):.4f}")
    trainer.test(model, batches, verbose=False)
    print(f"test accuracy {float(trainer.callback_metrics['test_accuracy']):.4f}")
    predicted = torch.cat(trainer.predict(model, batches))
    correct = predicted == data.y[data.test_mask]
    print(f"predicted {len(predicted)} nodes, accuracy {float(correct.float().mean()):.4f}")


if __name__ == "__main__":
    main()
