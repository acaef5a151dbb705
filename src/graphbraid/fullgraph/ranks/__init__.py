"""Several ranks: which rows of a lowered program each one owns, and the rows that they exchange."""
