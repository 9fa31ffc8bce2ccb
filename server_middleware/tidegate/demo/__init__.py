"""`tidegate demo`: one flood, three times, and what became of it.

Law of this package: it stands on both halves, the middleware and the client, and nothing imports it.
Every figure it prints was counted in the run before your eyes.
"""
