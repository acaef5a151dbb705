"""How near single kernels come to what the machine can do."""
