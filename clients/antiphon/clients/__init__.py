"""What a caller of antiphon's services needs: channels, a client per service, the command line."""
