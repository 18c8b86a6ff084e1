"""The pacer: order, catching up, never early."""

import asyncio
from time import monotonic_ns

import uvloop

from agentx_engine.sim.pacer import Pacer

MS = 1_000_000


class Ticks:
    """Fires `count` times every `step`, noting (name, deadline, how early or late)."""

    def __init__(self, name, log, step, count, done):
        self.name, self.log, self.step, self.left, self.done = name, log, step, count, done

    def fire(self, deadline_ns):
        self.log.append((self.name, deadline_ns, monotonic_ns() - deadline_ns))
        self.left -= 1
        if self.left:
            return deadline_ns + self.step
        self.done.release()
        return 0


def run(main):
    return uvloop.run(main())


def test_items_fire_in_order_of_deadline_and_never_early():
    async def main():
        pacer, log, done = Pacer(), [], asyncio.Semaphore(0)
        begin = monotonic_ns() + 2 * MS
        # Added in another order than they are due; steps without a common multiple below the end.
        steps = {"c": 1_700_000, "a": 700_000, "b": 1_100_000}
        for name, step in steps.items():
            pacer.add(begin, Ticks(name, log, step, 20, done))
        for _ in steps:
            await done.acquire()
        pacer.close()
        return begin, steps, log

    begin, steps, log = run(main)
    assert [d for _, d, _ in log] == sorted(d for _, d, _ in log)
    assert all(late >= 0 for _, _, late in log)
    for name, step in steps.items():
        assert [d for n, d, _ in log if n == name] == [begin + i * step for i in range(20)]


def test_an_item_that_fell_behind_catches_up_without_losing_a_deadline():
    async def main():
        pacer, log, done = Pacer(), [], asyncio.Semaphore(0)
        past = monotonic_ns() - 50 * MS
        pacer.add(past, Ticks("x", log, 10 * MS, 8, done))
        await done.acquire()
        pacer.close()
        return past, log

    past, log = run(main)
    assert [d for _, d, _ in log] == [past + i * 10 * MS for i in range(8)]


def test_an_earlier_deadline_is_served_before_one_that_is_armed():
    async def main():
        pacer, log, done = Pacer(), [], asyncio.Semaphore(0)
        far = monotonic_ns() + 3600_000 * MS
        pacer.add(far, Ticks("far", log, 1, 1, done))
        pacer.add(far - 3600_000 * MS, Ticks("near", log, 1, 1, done))
        await done.acquire()
        pacer.close()
        return log

    assert [name for name, _, _ in run(main)] == ["near"]


def test_an_item_may_add_another_while_it_fires():
    async def main():
        pacer, log, done = Pacer(), [], asyncio.Semaphore(0)

        class Parent(Ticks):
            def fire(self, deadline_ns):
                pacer.add(deadline_ns, Ticks("child", log, 1, 1, done))
                return super().fire(deadline_ns)

        pacer.add(monotonic_ns(), Parent("parent", log, 1 * MS, 2, done))
        for _ in range(3):
            await done.acquire()
        pacer.close()
        return log

    assert sorted(name for name, _, _ in run(main)) == ["child", "child", "parent", "parent"]
