"""Conversions between Graph and the graphs of other libraries: one module each, imported when used."""
