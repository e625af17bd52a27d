"""Pieces of messages."""

import pytest

from diopi.library.wording import beside, counted, nearest

pytestmark = pytest.mark.unit


def test_one_is_not_several() -> None:
    assert [counted(n, "byte") for n in (0, 1, 2)] == ["0 bytes", "1 byte", "2 bytes"]
    assert beside("x", 1, 0) == ["wrote 1 byte in front of x"] and beside("x", 0, 0) == []
    assert beside("x", 1, 3) == ["wrote 3 bytes behind the end of x", "wrote 1 byte in front of x"]


def test_letters_of_any_size_find_a_name() -> None:
    known = ["diopiPad", "diopiAdd", "diopiAddInp", "diopiBatchNorm"]
    assert nearest("diopiadd", known, 1) == nearest("DIOPIADD", known, 1) == ["diopiAdd"]
    assert nearest("diopiAd", known, 1) == ["diopiAdd"]
    assert nearest("diopibatchnrm", known)[0] == "diopiBatchNorm"
    assert nearest("convolution", known) == []
