"""How long an epoch on the whole graph takes, beside other libraries and the least it can take."""
