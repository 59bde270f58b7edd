"""What a user of antiphon writes: a task, run files, a script, services."""
