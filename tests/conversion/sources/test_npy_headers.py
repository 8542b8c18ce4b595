"""Headers of `.npy` files, which Python's parser reads for numpy."""

import ast
import io
import os
import threading
import time

import numpy as np
import pytest

from gdsload.conversion.sources.arrays import decode_npy, map_npy


@pytest.fixture
def content():
    stream = io.BytesIO()
    np.save(stream, np.arange(6).reshape(2, 3))
    return stream.getvalue()


@pytest.fixture
def uses(tmp_path, content):
    (tmp_path / "x.npy").write_bytes(content)
    return [
        lambda: decode_npy(content),
        lambda: map_npy(str(tmp_path / "x.npy")),
    ]


def test_one_thread_at_a_time_has_them_parsed(uses, monkeypatch):
    inside, most, parse = [], [], ast.literal_eval

    def slow(text):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return parse(text)

    monkeypatch.setattr(ast, "literal_eval", slow)
    threads = [threading.Thread(target=use) for use in uses * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == [1] * 4


def test_a_process_that_is_forked_meanwhile_can_have_them_parsed(uses, monkeypatch, ends_in_a_child):
    begun, parse = threading.Event(), ast.literal_eval

    def slow(text):
        begun.set()
        time.sleep(0.2)
        return parse(text)

    with monkeypatch.context() as patch:
        patch.setattr(ast, "literal_eval", slow)
        thread = threading.Thread(target=uses[0])
        thread.start()
        assert begun.wait(20)
    assert ends_in_a_child(lambda: uses[0]() is not None or os._exit(2))
    thread.join(20)
