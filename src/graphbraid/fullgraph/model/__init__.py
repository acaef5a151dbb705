"""The user's model: the data it is called with, whether it has changed, and running it as written."""
