"""The arithmetic of MAGRPO as pure functions: returns, advantages, samples, minibatches, loss."""
