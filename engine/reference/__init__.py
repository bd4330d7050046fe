"""Plain PyTorch forms of the models that the engine runs, small enough to read and to train."""
