"""A server for the rollout-control protocol, over pluggable capture ledgers."""
