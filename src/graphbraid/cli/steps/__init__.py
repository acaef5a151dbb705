"""Steps of commands: training shown as it goes, stores, predictions, and files of ids and tables."""
