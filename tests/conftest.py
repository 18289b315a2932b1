"""What every test shares: `async def` tests run on asyncio, without a mark (`anyio_mode` in pyproject.toml)."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
