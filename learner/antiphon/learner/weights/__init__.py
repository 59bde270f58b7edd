"""The way of the weights to the generation services, replica by replica."""
