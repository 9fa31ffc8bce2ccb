"""The shell: takes requests from an ASGI server through the core, and acts on what the core answers.

Law of this package: it waits, sends and counts, and decides nothing that the core could decide.
docs/architecture.md lists its files in the order in which a request meets them.
"""
