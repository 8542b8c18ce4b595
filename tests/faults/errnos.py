"""The errors that the manual names for each kind of system call, and those that network file systems add."""

from __future__ import annotations

import errno

# Left out: EAGAIN of read, which only pipes and sockets give.
_PATH = "EACCES ELOOP ENAMETOOLONG ENOENT ENOMEM ENOTDIR EIO ESTALE"
_CHANGE = f"{_PATH} EDQUOT ENOSPC EPERM EROFS"
_NAMES = {
    "open": f"{_CHANGE} EBUSY EEXIST EFBIG EINTR EINVAL EISDIR EMFILE ENFILE ENODEV ENXIO EOPNOTSUPP EOVERFLOW ETXTBSY",
    "read": "EBADF EFAULT EINTR EINVAL EIO EISDIR ENOMEM ESTALE ETIMEDOUT",
    "write": "EAGAIN EBADF EDQUOT EFAULT EFBIG EINTR EINVAL EIO ENOSPC EPERM EROFS ESTALE",
    "fsync": "EBADF EDQUOT EINTR EINVAL EIO ENOSPC EROFS",
    "close": "EDQUOT EINTR EIO ENOSPC",
    "mmap": "EACCES EAGAIN EBADF EINVAL ENFILE ENODEV ENOMEM EOVERFLOW EPERM ETXTBSY",
    "populate": "EAGAIN EFAULT EHWPOISON EINVAL EIO ENOMEM",
    "stat": f"{_PATH} EBADF EOVERFLOW",
    "scandir": "EACCES EBADF EIO EMFILE ENFILE ENOENT ENOMEM ENOTDIR",
    "rename": f"{_CHANGE} EBUSY EEXIST EINVAL EISDIR EMLINK ENOSYS ENOTEMPTY EXDEV",
    "unlink": f"{_PATH} EBUSY EEXIST EINVAL EISDIR ENOTEMPTY EPERM EROFS",
    "mkdir": f"{_CHANGE} EEXIST EINVAL EMLINK",
    "link": f"{_CHANGE} EEXIST EMLINK EOPNOTSUPP EXDEV",
    "readlink": f"{_PATH} EINVAL",
    "flock": "EBADF EINTR EINVAL ENOLCK ENOSYS EOPNOTSUPP EWOULDBLOCK",
}
CALLS = tuple(_NAMES)
"""Kinds of calls, numbered as in injector.c."""
_EHWPOISON = 133  # a page of broken memory: Python has no name for it
ERRNOS = {call: tuple(getattr(errno, name, _EHWPOISON) for name in names.split()) for call, names in _NAMES.items()}
