"""The coordinator: plans for the fleet and averages its answers."""
