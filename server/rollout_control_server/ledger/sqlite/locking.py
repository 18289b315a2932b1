"""Waiting for the file's write lock."""

import random
import sqlite3
import time
from typing import Final

__all__ = ["begin_immediate"]

_LOOK_S: Final = 0.001


def begin_immediate(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Begins a transaction that holds the write lock, once that is free.

    SQLite's own waiting soon looks only every 100 ms. Where several processes write all the time, it finds the lock
    held at each look, and may fail while the others commit thousands of rows. So the connection has a busy_timeout of
    0, and this looks every millisecond.

    Raises:
        sqlite3.OperationalError: Another process has held the lock whenever this looked, for `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.5, 1.5) * _LOOK_S)
