"""Move state between locations: written as a whole, exported, imported."""
