"""How much memory there may be taken."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsload.backends import keep
from gdsload.system.probe.tree import Tree
from gdsload.system.ram import meminfo, memory_room

V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


def tree_of(root, files):
    for path, text in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return Tree(str(root))


chains = st.lists(st.one_of(st.none(), st.just("max"), st.integers(1, 2**50)), min_size=1, max_size=5)


@settings(derandomize=True, max_examples=60)
@given(chains, chains, st.none() | st.integers(1, 2**40))
def test_the_smallest_of_all_limits_counts(tmp_path_factory, v2, v1, available_kb):
    """A limit for each group on the way from the root to this process's own."""
    files = {"/proc/self/cgroup": f"3:cpu,memory:{'/g' * (len(v1) - 1) or '/'}\n0::{'/g' * (len(v2) - 1) or '/'}\n"}
    for base, name, chain in ((V2, "memory.max", v2), (V1, "memory.limit_in_bytes", v1)):
        for depth, limit in enumerate(chain):
            if limit is not None:
                files[f"{base}{'/g' * depth}/{name}"] = f"{limit}\n"
    if available_kb is not None:
        files["/proc/meminfo"] = f"MemTotal:       99999999999999 kB\nMemAvailable:   {available_kb} kB\n"
    tree = tree_of(tmp_path_factory.mktemp("tree"), files)
    found = [limit for limit in (*v1, *v2) if isinstance(limit, int)]
    if available_kb is not None:
        found.append(available_kb * 1024)
    assert memory_room(tree) == min(found, default=None)
    with pytest.MonkeyPatch.context() as patched:  # others may have registered pages in this process
        patched.setattr(keep, "registered_in_process", lambda: 0)
        assert keep.default_register_bytes(tree) == min(found, default=0) // 2


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        # Another process's group, and those beside ours, are not ours.
        ("0::/a\n", {f"{V2}/b/memory.max": "5", f"{V2}/a/b/memory.max": "6", f"{V2}/ab/memory.max": "7"}, None),
        # Of version 1 only the hierarchy with the memory controller counts, and a name is no controller.
        ("2:cpu,cpuacct:/a\n1:name=memory:/a\n", {f"{V1}/a/memory.limit_in_bytes": "5"}, None),
        ("2:hugetlb,memory:/a\n", {f"{V1}/a/memory.limit_in_bytes": "5"}, 5),
        # Version 2 next to version 1, with the memory controller in the latter.
        ("2:memory:/a\n0::/b\n", {f"{V1}/a/memory.limit_in_bytes": "8", f"{V2}/b/memory.max": "9"}, 8),
        # As docker shows it from within, where the path is the host's; beside version 2, too.
        ("2:memory:/docker/1234\n", {f"{V1}/memory.limit_in_bytes": "5"}, 5),
        ("4:memory:/docker/1\n0::/\n", {f"{V1}/memory.limit_in_bytes": "5"}, 5),
        # A group above the namespace's root.
        ("0::/../../a\n", {f"{V2}/a/memory.max": "5"}, 5),
        # A colon in a name, as systemd has them.
        ("0::/dev-disk-by\\x2did:1.swap\n", {f"{V2}/dev-disk-by\\x2did:1.swap/memory.max": "5"}, 5),
        *[("0::/a\n", {f"{V2}/a/memory.max": text}, None) for text in ("0", "-1", "5 bytes", "")],
        ("", {f"{V2}/memory.max": "5"}, None),
        ("nonsense\n:\n::\n", {f"{V2}/memory.max": "5"}, None),
        ("0::/" + "a/" * 5000, {f"{V2}/memory.max": "5"}, 5),
    ],
)
def test_limits_of_control_groups(tmp_path, group, files, limit):
    assert memory_room(tree_of(tmp_path, {"/proc/self/cgroup": group, **files})) == limit


V2_FILES = {"memory.max": "1000", "memory.current": "700", "memory.stat": "active_file 100\nfile 9\ninactive_file 200"}
V1_FILES = {
    "memory.limit_in_bytes": "1000",
    "memory.usage_in_bytes": "700",
    "memory.stat": "inactive_file 9\ntotal_inactive_file 100\ntotal_active_file 50\n",
}


@pytest.mark.parametrize(
    ("group", "files", "room"),
    [
        # What the group has read of files can be taken back; the rest of what it uses cannot.
        ("0::/a\n", {"memory.max": "1000", "memory.current": "700"}, 300),
        ("0::/a\n", V2_FILES, 600),
        ("0::/a\n", {"memory.max": "1000", "memory.current": "1200"}, 0),
        ("0::/a\n", {"memory.max": "max", "memory.current": "700"}, 5 * 1024),
        ("2:memory:/a\n", V1_FILES, 450),
        ("2:memory:/a\n", {"memory.limit_in_bytes": "9223372036854771712"}, 5 * 1024),  # how version 1 has none
    ],
)
def test_what_is_left_of_a_control_group(tmp_path, group, files, room):
    base = V2 if group.startswith("0") else V1
    files = {f"{base}/a/{name}": text for name, text in files.items()}
    files |= {"/proc/self/cgroup": group, "/proc/meminfo": "MemAvailable: 5 kB\n"}
    assert memory_room(tree_of(tmp_path, files)) == room


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MemAvailable:    1024 kB\n", 2**20),
        ("HugePages_Total:  7\nMemAvailable: 512\n", 512),  # a count has no unit
        ("NotMemAvailable: 9 kB\nMemAvailableToo: 9 kB\n", None),
        ("MemAvailable: much\n", None),
        ("MemAvailable: ٣ kB\n", None),
        ("", None),
    ],
)
def test_figures_of_meminfo(tmp_path, text, found):
    assert meminfo(tree_of(tmp_path, {"/proc/meminfo": text}), "MemAvailable") == found


def test_this_system():
    assert 0 < keep.default_register_bytes() * 2 <= meminfo(Tree(), "MemTotal")
