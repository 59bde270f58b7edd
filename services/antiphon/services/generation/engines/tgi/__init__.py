"""text-generation-inference behind the generation service."""
