"""The services that a learner calls, and what they share."""
