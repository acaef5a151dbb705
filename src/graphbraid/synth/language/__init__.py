"""The language: grammar, parser, typed syntax tree and checks that name a mistake's line and column."""
