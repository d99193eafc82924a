"""What the docstrings say is so: every `>>>` example runs as it stands there, copied into an empty program."""

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import effectstore


def modules() -> list[ModuleType]:
    names = (found.name for found in pkgutil.walk_packages(effectstore.__path__, "effectstore."))
    # The command line's entry runs when it is imported.
    return [effectstore, *(importlib.import_module(name) for name in names if not name.endswith("__main__"))]


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for module in modules() for test in finder.find(module, globs={}) if test.examples]


def test_there_are_examples() -> None:
    assert {"effectstore._artifact.Artifacts", "effectstore._process.ApprovalRule"} <= {
        test.name for test in examples()
    }


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_every_example_of_a_docstring_runs_where_nothing_is_imported(example: doctest.DocTest) -> None:
    told: list[str] = []
    assert doctest.DocTestRunner().run(example, out=told.append).failed == 0, "".join(told)
