"""From datasets to tasks, and from tasks to the agents' first prompts."""
