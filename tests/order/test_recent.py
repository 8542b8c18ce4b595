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


def test_threads_that_miss_together_get_one_value():
    recent = Recent(1)
    both_missed = threading.Barrier(2, timeout=10)
    got = []

    def make(_):
        both_missed.wait()
        return object()

    threads = [threading.Thread(target=lambda: got.append(recent.get("key", make))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 2
    assert got[0] is got[1]
