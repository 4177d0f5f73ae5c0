"""Moving state while the stream goes on: planner, strategies, requests. Pure; no Spark inside."""
