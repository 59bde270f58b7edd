"""What more than one process needs: the server, settings, logs and the calling of user functions.

The modules that need torch (`models`, `sampling`, `tensors`) are imported by nobody here, so that a
reward service starts without it.
"""
