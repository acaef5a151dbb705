"""Readers: the meaning of each layer, module and function of a model, by exact class."""
