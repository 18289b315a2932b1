"""The demo: a model server's process, a trainer that talks to it over HTTP, and a table of what happened.

`trainer` runs in the command's process and starts `model_server` in another.
"""
