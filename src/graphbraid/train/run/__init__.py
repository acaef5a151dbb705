"""One call of ``Trainer.fit``: set up and checked, followed step by step, saved, ended."""
