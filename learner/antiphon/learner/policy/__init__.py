"""One agent's policy: its forward pass, reference, optimiser steps and adapter."""
