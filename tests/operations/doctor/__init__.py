"""Tests of the checks that the doctor makes."""
