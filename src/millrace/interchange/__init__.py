"""State on the move between locations: written as a whole, exported, imported."""
