"""Parts: the local and remote graphs of each rank, the rows it exchanges, and the folder that keeps them."""
