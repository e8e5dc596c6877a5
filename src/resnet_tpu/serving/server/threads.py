"""Threads that exist before the first request."""

import threading
from concurrent.futures import ThreadPoolExecutor

from resnet_tpu.errors import UserError, first_line


def start_threads(count: int, name: str) -> ThreadPoolExecutor:
    """A pool of `count` threads, all of them started. Raises UserError when the system refuses one.

    Python's own pool starts a thread only when there is work for it: a server that may not start any more threads would
    report that it is ready, and answer nothing.
    """
    pool, all_started = ThreadPoolExecutor(count, name), threading.Barrier(count)
    try:
        for _ in range(count):
            pool.submit(all_started.wait)
    except RuntimeError as error:
        all_started.abort()
        do = "Raise the limit on the processes and threads of the user, service or container."
        raise UserError(f"Threads to {name}", first_line(error), f"{count} of them", do) from None
    return pool
