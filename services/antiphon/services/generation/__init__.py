"""The generation service: samples completions of one agent and takes that agent's weights."""
