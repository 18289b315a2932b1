"""The demo: a model server's process, a trainer that talks to it over HTTP, and a table of what happened."""

from rollout_control_server.demo.trainer import run_demo

__all__ = ["run_demo"]
