"""The tables of the README and of the docs, made from the committed results alone."""
