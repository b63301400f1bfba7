"""The public names of the doctor."""

from hookonce.operations import doctor


def test_every_public_name_is_a_class_or_a_function_of_the_doctor() -> None:
    for name in doctor.__all__:
        assert getattr(doctor, name).__module__.startswith("hookonce.operations.doctor.")
