"""Calls that threads make at once."""

import threading
from concurrent.futures import ThreadPoolExecutor


def in_threads(work, items):
    """Call a function with each item, in a separate thread, at once; an error of any comes out."""
    items = list(items)
    start = threading.Barrier(len(items))

    def work_with_others(item):
        start.wait()
        return work(item)

    with ThreadPoolExecutor(len(items)) as pool:
        list(pool.map(work_with_others, items))
