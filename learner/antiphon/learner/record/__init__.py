"""What a run tells: figures, metrics, rollouts on disk, progress, trackers and reports."""
