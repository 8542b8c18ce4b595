"""Fixtures of the tests of benchmarks: contenders in this process, as a process takes longer to start than to work."""

import importlib
import json
import runpy
from contextlib import contextmanager

import pytest

from benchmarks import rounds, serving
from benchmarks.against import cases
from benchmarks.convert import __main__ as convert
from benchmarks.gpu.suite import rounds as gpu_rounds
from benchmarks.processes import WorkerError


class ContenderHere:
    """As `benchmarks.processes.Process`, but the contender's worker answers in this process."""

    lost = False

    def __init__(self, name, folder, source, workload, launch):
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.folder, self.source, self._packages = name, folder, source, launch.packages
        self._begin, self._perform = served(launch.module)
        self._contender, self._answers = None, []
        self.send({"name": name, "folder": str(folder), "source": str(source), "workload": workload.to_json()})

    def send(self, order):
        order = json.loads(json.dumps(order))
        try:
            answer = self._answer(order)
        except Exception as error:  # whatever a peer raises is its result
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._answers.append(json.loads(json.dumps(answer)))

    def _answer(self, order):
        if self._contender is None:
            self._contender, about = self._begin(order)
            return about
        if order["op"] == "imported":  # of the tree that a process would import
            return {"file": str(self._packages / order["name"] / "__init__.py")}
        return self._perform(self._contender, order)

    def answer(self, timeout_s):
        answer = self._answers.pop(0)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def start(self):
        return self.answer(0)

    def ask(self, order, timeout_s):
        self.send(order)
        return self.answer(timeout_s)

    def stop(self):
        """Nothing has to end."""


def served(module):
    """The calls that a worker in another process would serve."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "serve", lambda *functions: found.append(functions))
        runpy.run_path(importlib.import_module(module).__file__, run_name="__main__")
    return found[0]


@pytest.fixture(scope="session")
def contenders_here():
    """Within it contenders have no processes of their own: ``with contenders_here(): main()``."""

    @contextmanager
    def here():
        with pytest.MonkeyPatch.context() as patch:
            for module in (cases, convert, gpu_rounds, rounds):
                patch.setattr(module, "Process", ContenderHere)
            patch.setattr("os.sync", lambda: None)  # which waits for all that others write
            yield

    return here
