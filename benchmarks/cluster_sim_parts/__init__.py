"""Parts of the simulated cluster: the model, its constants, its validation and its pages."""
