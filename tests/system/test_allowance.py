"""A time limit that stands still while its work waits."""

import anyio
import pytest

from mcp_rl.system.allowance import Allowance, not_counted


async def test_work_beyond_the_allowance_is_cancelled() -> None:
    allowance = Allowance(0.05)
    with allowance.limiting():
        await anyio.sleep_forever()
    assert allowance.exceeded and allowance.spent >= 0.05


async def test_waiting_is_neither_limited_nor_counted() -> None:
    allowance = Allowance(0.2)

    async def wait() -> None:
        with not_counted():
            await anyio.sleep(0.4)

    with allowance.limiting():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
        assert allowance.spent < 0.2
        await anyio.sleep_forever()
    assert allowance.exceeded and 0.2 <= allowance.spent < 0.4


async def test_waiting_without_an_allowance_changes_nothing() -> None:
    with pytest.raises(ZeroDivisionError), not_counted():
        raise ZeroDivisionError
