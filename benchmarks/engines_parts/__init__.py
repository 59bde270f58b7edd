"""What the measurement of engines does, and the engines that it does it with."""
