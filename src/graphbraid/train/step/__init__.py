"""One step of training: where its batch comes from, how the model is called, the loss and the update."""
