"""How good plans are: beside the bound and the optimum, and run on an emulated accelerator."""
