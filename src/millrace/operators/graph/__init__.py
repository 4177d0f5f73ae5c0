"""Streams of edges: adjacency and degrees, components and sides, triangles."""
