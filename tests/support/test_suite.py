"""The tests that a run selects, and the text at the end of the run."""

from pathlib import Path

import pytest

from . import suite

TESTS = """
import pytest

def test_short(): pass

@pytest.mark.full("an hour")
def test_long(): pass

@pytest.mark.sample(3)
@pytest.mark.parametrize("n", range(20))
def test_many(n): pass
"""


ALONE = ("-p", "support.suite", "-p", "pytest_randomly", "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep an inner run from loading other installed plugins, which would slow its start."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def names(pytester: pytest.Pytester) -> "Names":
    pytester.makepyfile(test_it=TESTS)
    return Names(pytester)


class Names:
    """Returns the names of the tests that an inner run selects with these arguments."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def __call__(self, *arguments: str) -> set[str]:
        run = self.pytester.inline_run(*ALONE, *arguments)
        passed, skipped, failed = run.listoutcomes()
        assert not skipped
        assert not failed
        return {report.nodeid.partition("::")[2] for report in passed}


def test_a_run_leaves_out_what_is_marked_full_and_most_of_what_is_sampled(names: Names) -> None:
    run = names()
    assert "test_short" in run
    assert "test_long" not in run
    assert len(run) == 4


def test_the_full_run_takes_a_third_of_the_rest_of_a_sample(names: Names) -> None:
    run = names("--randomly-seed=7")
    full, undrawn = (names("--randomly-seed=7", "-m", mark) for mark in ("full", "undrawn"))
    assert (len(run), len(full), len(undrawn), len(run | full | undrawn)) == (4, 7, 11, 22)
    assert "test_long" in full


def test_the_full_run_draws_cases_too_and_leaves_the_others_to_a_mark_of_their_own(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.full("an hour each", draw=3)
        @pytest.mark.parametrize("n", range(20))
        def test_long(n): pass
        """
    )
    run = Names(pytester)
    assert not run("--randomly-seed=7")
    full, undrawn = (run("--randomly-seed=7", "-m", mark) for mark in ("full", "undrawn"))
    assert (len(full), len(undrawn), len(full | undrawn)) == (3, 17, 20)
    assert run("--randomly-seed=8", "-m", "full") != full
    assert len(run("--randomly-seed=7", "-m", "full or undrawn")) == 20
    assert len(run("test_it.py::test_long")) == 20


def test_a_seed_draws_the_same_and_another_seed_others(names: Names) -> None:
    runs = [frozenset(names(f"--randomly-seed={seed}")) for seed in (1, 1, 2, 3, 4)]
    assert runs[0] == runs[1]
    assert len(set(runs)) > 2


def test_a_part_of_the_suite_draws_as_the_whole(names: Names) -> None:
    whole = names("--randomly-seed=7")
    assert names("--randomly-seed=7", "-k", "many") == whole - {"test_short"}


def test_of_a_file_that_is_sampled_so_many_tests_run_beside_what_has_a_mark_of_its_own(
    pytester: pytest.Pytester,
) -> None:
    mark = '\n\npytestmark = pytest.mark.sample(5, of="file")'
    single = "".join(f"\n\ndef test_{n}(): pass" for n in range(10))
    pytester.makepyfile(test_it=f"{TESTS}{mark}{single}")  # test_short is in this file, too
    run = Names(pytester)
    drawn = run("--randomly-seed=7")
    rest = run("--randomly-seed=7", "-m", "full or undrawn")
    assert sum("[" not in name for name in drawn) == 5
    assert sum("[" in name for name in drawn) == 3
    assert "test_long" in rest
    assert not drawn & rest
    assert len(drawn | rest) == 32


def test_the_full_run_takes_only_some_of_a_sample_s_rest_if_the_mark_says_so(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.sample(3, full=5)
        @pytest.mark.parametrize("n", range(20))
        def test_many(n): pass
        """
    )
    run = Names(pytester)
    few = run("--randomly-seed=7")
    full, undrawn = (run("--randomly-seed=7", "-m", mark) for mark in ("full", "undrawn"))
    assert (len(few), len(full), len(undrawn), len(few | full | undrawn)) == (3, 5, 12, 20)
    assert len(run("--randomly-seed=7", "-m", "full or not full or undrawn")) == 20


def test_a_test_that_is_named_runs_whatever_its_mark(names: Names) -> None:
    assert names("test_it.py::test_long") == {"test_long"}
    assert len(names("test_it.py::test_many")) == 20
    assert names("test_it.py::test_many[5]") == {"test_many[5]"}


def test_one_line_says_what_was_skipped_and_why(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_it(n):
            pytest.skip("there is no moon; to enable: wait for the night")

        @pytest.mark.skip("it is Monday")
        def test_other():
            pass
        """
    )
    run = pytester.runpytest_inprocess(*ALONE)
    moon = "3 because there is no moon; to enable: wait for the night"
    run.stdout.fnmatch_lines([f"skipped 4: {moon} | 1 because it is Monday"])
    assert str(run.stdout).count("no moon") == 1


def test_what_tests_cost_is_written_and_those_over_the_limit_are_listed(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "UNMARKED_CPU_SECONDS", 0.05)
    pytester.makepyfile(
        """
        import time

        import pytest

        def work():
            begun = time.process_time()
            while time.process_time() - begun < 0.1: pass

        @pytest.fixture(scope="session", autouse=True)
        def shared():
            yield
            work()

        def test_busy(): work()

        @pytest.mark.full("0.1 s")
        def test_marked(): work()

        @pytest.mark.costs("0.1 s")
        def test_marked_and_always_run(): work()

        def test_short(): pass
        """
    )
    file = tmp_path / "costs"
    arguments = ("-m", "full or not full", "--randomly-dont-reorganize", "--costs", str(file))
    run = pytester.runpytest_inprocess(*ALONE, *arguments)
    run.stdout.fnmatch_lines(["*over 0.05 s of processor time, not marked*", "*s *::test_busy"])
    assert "test_marked" not in str(run.stdout)
    lines = [line.split("\t") for line in file.read_text().splitlines()]
    assert {name.partition("::")[2] for *_, name in lines} == {
        "test_short",
        "test_busy",
        "test_marked",
        "test_marked_and_always_run",
    }
    assert sum(float(cpu) > 0.05 for cpu, *_ in lines) == 3
