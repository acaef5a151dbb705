"""The subcommands: their options, their help and what they print. Related ones share a file."""
