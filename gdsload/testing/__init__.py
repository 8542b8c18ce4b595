"""For people who test what they build on gdsload, and for its own tests. Nothing in the package imports it.

- `BackendTests`: what every backend must do; subclass it to test yours.
- `FaultyBackend`, `SlowBackend`, `RecordingBackend`: wrappers that fail on purpose, take their time, or take notes.
- `assert_resumes_everywhere`: that a loader can be stopped and resumed at every step.
- `fingerprint`: a batch's content as one line of text, so that batches can be compared and remembered.
"""

from gdsload.testing.batches import assert_resumes_everywhere, fingerprint
from gdsload.testing.conformance import BackendTests
from gdsload.testing.wrappers import Fault, FaultyBackend, RecordingBackend, SlowBackend

__all__ = [
    "BackendTests",
    "Fault",
    "FaultyBackend",
    "RecordingBackend",
    "SlowBackend",
    "assert_resumes_everywhere",
    "fingerprint",
]
