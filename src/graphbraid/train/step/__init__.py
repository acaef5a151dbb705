"""One step of training: its batches, the call of the model, the loss and the optimizer's update."""
