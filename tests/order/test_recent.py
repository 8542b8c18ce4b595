import threading

from gdsload.order.recent import Recent


def test_keeps_the_values_used_last():
    made = []
    recent = Recent(2)

    def make(key):
        made.append(key)
        return key * 10

    assert [recent.get(key, make) for key in (1, 2, 1, 3, 1, 2)] == [10, 20, 10, 30, 10, 20]
    assert made == [1, 2, 3, 2]


def test_threads_that_miss_together_get_one_value(in_thread):
    recent = Recent(1)
    both_missed = threading.Barrier(2, timeout=10)

    def make(_):
        both_missed.wait()
        return object()

    first, second = [in_thread(recent.get, "key", make) for _ in range(2)]
    assert first.result(timeout=20) is second.result(timeout=20)
