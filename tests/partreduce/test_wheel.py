"""The wheel: partreduce and other packages or folders of equal names coexist."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import partreduce
from partreduce.topo.extras import EXTRAS

ROOT = Path(partreduce.__file__).parent.parent
PACKAGES = ("topo", "schedulers", "verify", "runtime")

RUN_ALL = """
import json
import os
import sys
import partreduce.planner.plan
from partreduce.__main__ import main
from partreduce.commands import build_app

build_app()  # once, for all commands, as the planner
for number, arguments in enumerate(json.loads(sys.argv[1])):
    if os.fork() == 0:
        output = os.open(f"output-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""Run each command in its own process, forked from one that has imported them."""

BLOCK = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None


sys.meta_path.insert(0, Blocked())
"""

PROVE = """
import partreduce
schedule = partreduce.design("2x4", build="prague-figure-10")
assert partreduce.topo.__name__ == "partreduce.topo"
print(partreduce.__file__)
print(partreduce.verify(schedule).verdict)
print(partreduce.PlanRequest.__module__, partreduce.design.__module__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return Path(next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")))))


class Environment:
    """An empty virtual environment, which borrows libraries from this one."""

    def __init__(self, folder):
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        self.site = Path(self._output("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())

    def pip(self, *arguments):
        command = [sys.executable, "-m", "pip", "--python", self.python, *arguments]
        subprocess.run([*command, "--disable-pip-version-check", "--quiet"], check=True, env=clean_environment())

    def install(self, *wheels):
        self.pip("install", "--no-index", "--no-deps", "--no-compile", *wheels)

    def borrow_libraries(self):
        """Add the running interpreter's libraries behind the environment's own; their .pth files are ignored."""
        (self.site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    @contextlib.contextmanager
    def without(self, *modules):
        """Hide these borrowed libraries."""
        (self.site / "blocked.py").write_text(BLOCK.format(modules=set(modules)))
        (self.site / "blocked.pth").write_text("import blocked\n")
        yield self
        (self.site / "blocked.pth").unlink()

    def run(self, code, cwd):
        """Run a script in a folder and return its lines."""
        script = cwd / "train.py"
        script.write_text(code)
        return self._output(script, cwd=cwd).splitlines()

    def command(self, *arguments, cwd):
        return self._output("-m", "partreduce", *arguments, cwd=cwd)

    def run_all(self, commands, cwd):
        """Return the output and exit code of each command."""
        codes = self._output("-c", RUN_ALL, json.dumps(commands), cwd=cwd).split()
        return [((cwd / f"output-{number}").read_text(), int(code)) for number, code in enumerate(codes)]

    def _output(self, *arguments, cwd=None):
        done = subprocess.run(
            [self.python, *arguments], cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP"))}


def foreign_wheel(folder, name):
    """Build a wheel of another package whose name and module are those of one of our packages."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}/__init__.py": f"NAME = 'the other {name}'\n",
        f"{name}/base.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(member, text)
    return path


def damaged_files(site):
    """Return the installed files of partreduce that differ from the wheel."""
    distribution = importlib.metadata.PathDistribution(next(site.glob("partreduce-*.dist-info")))
    damaged = []
    for file in distribution.files:
        if file.hash is not None:
            digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
            if urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                damaged.append(str(file))
    return damaged


def test_wheel_contains_one_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "partreduce",
        f"partreduce-{partreduce.__version__}.dist-info",
    }
    sources = {
        path.relative_to(ROOT).as_posix()
        for suffix in ("py", "pyi", "typed")
        for path in (ROOT / "partreduce").rglob(f"*.{suffix}")
    }
    assert {name for name in names if name.startswith("partreduce/")} >= sources


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("source")
    packed = next(SdistBuilder(str(ROOT)).build(directory=str(folder)))
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.glob("partreduce-*") if path.is_dir())
    return unpacked


def test_sdist_contains_no_file_twice(source):
    """The symbolic links at the top of the repository would include all sources twice."""
    assert not [name for name in PACKAGES if (source / name).exists()]
    inside = {path.relative_to(source) for path in (source / "partreduce").rglob("*.py")}
    assert inside == {path.relative_to(ROOT) for path in (ROOT / "partreduce").rglob("*.py")}


def test_sdist_builds_the_same_wheel(wheel, source, tmp_path):
    again = Path(next(WheelBuilder(str(source)).build(directory=str(tmp_path))))

    def contents(path):
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    assert contents(again) == contents(wheel)


def test_pip_installs_the_unpacked_sdist(source, tmp_path):
    place = Environment(tmp_path / "environment")
    place.borrow_libraries()
    place.pip("install", "--no-index", "--no-deps", "--no-compile", "--no-build-isolation", source)
    empty = tmp_path / "empty"
    empty.mkdir()
    home = str(place.site / "partreduce" / "__init__.py")
    assert place.run(PROVE, empty) == [home, "proved", "partreduce.planner.job partreduce.api"]


def test_packages_of_equal_names_and_partreduce_coexist(wheel, tmp_path):
    place = Environment(tmp_path / "environment")
    foreign = {name: foreign_wheel(tmp_path, name) for name in PACKAGES}
    place.install(foreign["verify"], foreign["topo"])
    place.install(wheel)
    place.install(foreign["runtime"], foreign["schedulers"])
    place.borrow_libraries()
    home = str(place.site / "partreduce" / "__init__.py")
    expected = [home, "proved", "partreduce.planner.job partreduce.api"]
    theirs = "".join(f"import {name}; assert {name}.NAME == 'the other {name}'\n" for name in PACKAGES)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert place.run(theirs + PROVE, empty) == expected

    # Modules and packages of the user with these names, in the folder of the script and of `python -m partreduce`.
    users = tmp_path / "users"
    users.mkdir()
    for index, name in enumerate(PACKAGES):
        file = users / f"{name}.py" if index % 2 else users / name / "__init__.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"NAME = 'my own {name}'\n")
    mine = "".join(f"import {name}; assert {name}.NAME == 'my own {name}'\n" for name in PACKAGES)
    assert place.run(mine + PROVE, users) == expected
    assert place.command("--version", cwd=users) == f"{partreduce.__version__}\n"

    place.pip("uninstall", "--yes", *PACKAGES)
    assert not damaged_files(place.site)
    assert place.run(PROVE, empty) == expected
    place.command("design", "2x4", "--build", "prague-figure-10", "-o", "schedule.json", cwd=empty)
    assert "PROVED: " in place.command("verify", "schedule.json", cwd=empty)


@pytest.fixture(scope="module")
def full_install(wheel, tmp_path_factory):
    """The wheel with all libraries, installed once, because every environment would compile all sources again."""
    place = Environment(tmp_path_factory.mktemp("installed") / "environment")
    place.install(wheel)
    place.borrow_libraries()
    return place


@pytest.fixture
def base_install(full_install):
    """The wheel without any extra."""
    with full_install.without(*EXTRAS):
        yield full_install


def test_base_install_designs_proves_shows_and_simulates(base_install, tmp_path):
    lines = [
        "design 2x4 --build prague-figure-10 -o schedule.json", "verify schedule.json --certificate certificate.json",
        "show schedule.json", "simulate schedule.json", "simulate schedule.json schedule.json",
        "simulate schedule.json -o trace.json", "design 2x4 --effort 0.3", "design --list",
    ]  # fmt: skip
    answers = base_install.run_all([line.split() for line in lines], tmp_path)
    assert [code for _, code in answers] == [0] * len(lines), answers
    assert (tmp_path / "trace.json").exists()
    proved = answers[1][0]
    assert proved.startswith("PROVED: ")
    assert "Not proved" not in proved


EXTRA_COMMANDS = [
    ("plot", ["show", "schedule.json", "-o", "picture.png"]),
    ("plot", ["show", "schedule.json", "-o", "page.html"]),
    ("plot", ["simulate", "schedule.json", "-o", "picture.png"]),
    ("plot", ["design", "2x4", "--plot", "front.png"]),
    ("torch", ["run", "--workers", "2", "script.py"]),
    ("torch", ["measure", "--workers", "2"]),
    ("service", ["generator", "generated.json", "--keys", "keys.json"]),
    ("torch,demo,plot", ["demo"]),
]


@pytest.fixture(scope="module")
def missing_extras(full_install, tmp_path_factory):
    folder = tmp_path_factory.mktemp("missing_extras")
    partreduce.write_schedule(folder / "schedule.json", partreduce.design("2x4", build="prague-figure-10"))
    cluster = partreduce.Cluster.regular(2, 4)
    partreduce.write_schedule(
        folder / "generated.json", partreduce.Schedule("g", cluster, partreduce.strategies.DynamicGroups())
    )
    with full_install.without(*EXTRAS):
        return full_install.run_all([arguments for _, arguments in EXTRA_COMMANDS], folder)


@pytest.mark.parametrize(("number", "extras"), list(enumerate(extras for extras, _ in EXTRA_COMMANDS)))
def test_missing_extra_is_one_line_with_the_install_command(missing_extras, number, extras):
    text, code = missing_extras[number]
    assert code == 77, text
    assert text.count("\n") == 1
    assert f"pip install 'partreduce[{extras}]'" in text


def test_missing_extra_raises_in_a_script(base_install, tmp_path):
    code = (
        "import partreduce\n"
        "try:\n    partreduce.DistributedOptimizer\n"
        "except partreduce.errors.MissingDependencyError as error:\n    print(error)\n"
    )
    assert base_install.run(code, tmp_path) == [
        "partreduce.DistributedOptimizer needs torch; install it with: pip install 'partreduce[torch]'"
    ]


@pytest.mark.processes
def test_demo_next_commands_work_from_the_wheel(full_install, tmp_path):
    code = (
        "from pathlib import Path\n"
        "from partreduce.demo.report import next_commands\n"
        "from partreduce.demo.stages import make_folder, prepare\n"
        "make_folder(Path('my demo'))\n"
        "print('\\n'.join(next_commands(prepare(Path('my demo'), '2x2'))))\n"
    )
    lines = full_install.run(code, tmp_path)
    assert len(lines) == 4
    for line in lines:
        verb, *arguments = shlex.split(line)
        assert verb == "partreduce"
        answer = full_install.command(*arguments, cwd=tmp_path)
        if arguments[0] == "run":
            assert "test accuracy of the mean model" in answer
