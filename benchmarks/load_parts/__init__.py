"""The parts of the load benchmark."""
