"""What a run is told: settings, checked when they are made. Needs no torch."""
