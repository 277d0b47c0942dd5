"""What `python -m benchmarks.code_metrics` finds in a tree with a circle, a climb and a link."""

from collections import Counter

import pytest

from benchmarks.code_metrics import measured

FILES = {
    "partreduce/__init__.py": "",
    "partreduce/runtime/__init__.py": "",
    "partreduce/runtime/averaging/__init__.py": "",
    "partreduce/runtime/averaging/bucket.py": "from partreduce.runtime.averaging import sums\n",
    "partreduce/runtime/averaging/sums.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from .bucket import Bucket\n"
    ),
    "partreduce/runtime/transport/__init__.py": "",
    "partreduce/runtime/transport/gloo.py": (
        "def late() -> None:\n    import partreduce.runtime.averaging.sums\n    import partreduce.topo.cluster\n"
    ),
    "topo/__init__.py": "",
    "topo/cluster.py": "NODES = 1\n",
}


@pytest.fixture
def tree(tmp_path):
    """An older tree: a package of the repository's top is a link in `partreduce/`."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "partreduce" / "topo").symlink_to("../topo")
    return tmp_path


def test_circles_and_climbs_are_named_wherever_the_imports_stand(tree):
    found = measured(tree)
    circle = "partreduce.runtime.averaging.bucket <-> partreduce.runtime.averaging.sums"
    assert found.module_circles == [circle]
    assert found.package_circles == [circle]
    assert found.climbs == ["partreduce.runtime.transport -> partreduce.runtime.averaging"]


def test_each_file_counts_once(tree):
    (tree / "partreduce" / "again.py").symlink_to("__init__.py")
    found = measured(tree)
    assert found.files == Counter(
        {
            "partreduce": 1,
            "partreduce.runtime": 1,
            "partreduce.runtime.averaging": 3,
            "partreduce.runtime.transport": 2,
            "partreduce.topo": 2,
        }
    )
    assert found.lines["partreduce.runtime.averaging"] == 5
