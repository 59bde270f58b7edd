"""What a caller of antiphon's services needs: channels, a client per service, the command line."""

import os

# Before gRPC is imported: its own log lines are not for people. What fails is told as an error.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
