"""The job over versions reads what is declared and what there is."""

from tests.versions import minors, oldest


def test_the_last_minor_versions() -> None:
    listed = " 2.15.0, 2.14.1, 2.14.0, 2.13.0+cpu, 2.13.0, 2.9.1, 1.13.1"
    assert minors(listed) == ["2.13", "2.14", "2.15"]
    assert minors(listed, 5) == ["1.13", "2.9", "2.13", "2.14", "2.15"]


def test_the_oldest_pytorch_is_a_whole_version() -> None:
    (wanted,) = [requirement for requirement in oldest("torch") if requirement.startswith("torch")]
    assert wanted.count(".") == 2
