"""One call of ``Trainer.fit``: early checks, setup, the training loop, and saving."""
