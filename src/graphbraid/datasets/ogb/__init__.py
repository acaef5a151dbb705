"""OGB: node datasets as the ``ogb`` package writes them, read without it."""
