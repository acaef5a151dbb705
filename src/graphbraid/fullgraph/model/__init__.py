"""The user's model: how it is called and with what, whether it has changed, and running it as written."""
