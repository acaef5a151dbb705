"""The subcommands, one file each: their options, their help and what they print."""
