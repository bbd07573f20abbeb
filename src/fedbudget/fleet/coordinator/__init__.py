"""The coordinator: plans for the fleet, runs the rounds and averages the answers."""
