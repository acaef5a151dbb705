"""Several ranks: the rows of a lowered program that each one owns, and those that they exchange."""
