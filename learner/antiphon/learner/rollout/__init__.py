"""Growing the trees: prompts, completions, scores and next prompts, breadth first by turn."""
