"""What is run: names, sources, loading, checkpoints, the Hub, the backend, and the families."""
