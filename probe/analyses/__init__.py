"""The questions that can be asked of a model, one file each."""
