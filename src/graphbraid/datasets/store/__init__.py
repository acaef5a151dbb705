"""The on-disk store: a folder of arrays, how they are written, checked, renumbered and opened."""
