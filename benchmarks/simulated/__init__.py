"""Services that sleep instead of computing, behind the real contract: what waits for what."""
