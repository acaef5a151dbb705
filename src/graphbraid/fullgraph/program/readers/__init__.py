"""Readers: what each layer, module and function of a model means, by its exact class."""
