"""Side by side with the peers, in one run, in turn, as ratios of medians."""
