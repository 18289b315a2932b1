"""The command `rollout-control`: serve and look into ledgers, check servers, show how it all works together.

`cli` is the command. Each of its subcommands imports what it needs when it runs, so that it works without the extras of
the others, and `extras` names the extra to install where one is missing. No other package imports this one.
"""
