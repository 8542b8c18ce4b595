"""torchvision's and albumentations' transforms: `make vision` has an environment with them.

It is not that of the other frameworks: where pip has a build of torch that torchvision's wheel was not made for, what
imports torchvision fails, and some of them do if it is there.
"""

import os

if os.environ.get("GDSLOAD_SUITE") != "vision":
    collect_ignore_glob = ["test_*.py"]
