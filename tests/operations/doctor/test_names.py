"""What the package says that it has."""

from hookonce.operations import doctor


def test_every_public_name_is_a_class_or_a_function_and_no_module_of_that_name() -> None:
    for name in doctor.__all__:
        assert getattr(doctor, name).__module__.startswith("hookonce.operations.doctor.")
