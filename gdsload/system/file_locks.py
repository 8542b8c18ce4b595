"""Locks on files, which the kernel releases when their process ends."""

from __future__ import annotations

import errno
import fcntl

_NO_LOCKS = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK)
"""Lustre without ``-o flock``, NFS without a lock daemon, FUSE: the answers of file systems that have no locks."""


def lock_file(fd: int, *, wait: bool) -> bool:
    """Take the exclusive lock of an open file; False if the file system has no locks.

    With `wait`, until nobody else has it. The lock is released with the last descriptor.

    Raises:
        BlockingIOError: if somebody else has it, and that is not waited for.
        OSError: if it cannot be taken for another reason.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True
