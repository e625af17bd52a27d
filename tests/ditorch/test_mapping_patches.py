"""The record of changes, on things that are not torch."""

from __future__ import annotations

import types

import pytest

from _ditorch.mapping.patches import Patches

pytestmark = pytest.mark.unit


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    @classmethod
    def plain(cls) -> str:
        return "plain"

    @property
    def computed(self) -> str:
        return "computed"


def test_everything_comes_back_as_it_was() -> None:
    module = types.ModuleType("module")
    module.value = 1  # type: ignore[attr-defined]
    table = {"known": 1}
    entries = ["first", "last"]
    before = (dict(vars(Owner)), dict(vars(module)))
    patches = Patches()
    patches.set(Owner, "inherited", lambda self: "patched")
    patches.set(Owner, "plain", "patched")
    patches.set(Owner, "computed", property(lambda self: "patched"))
    patches.set(module, "value", 2)
    patches.set(module, "new", 3)
    patches.set_item(table, "known", 2)
    patches.set_item(table, "new", 3)
    patches.insert(entries, "middle", lambda found: 1)
    assert (dict(vars(Owner)), dict(vars(module))) == before

    for _ in range(2):
        patches.install()
        patches.install()
        assert Owner().inherited() == Owner().computed == Owner.plain == "patched"
        assert (module.value, module.new, table, entries) == (
            2,
            3,
            {"known": 2, "new": 3},
            ["first", "middle", "last"],
        )
        patches.remove()
        patches.remove()
        assert (dict(vars(Owner)), dict(vars(module))) == before
        assert (table, entries) == ({"known": 1}, ["first", "last"])
        assert Owner().inherited() == "base"


def test_a_pause() -> None:
    patches = Patches()
    patches.set(Owner, "inherited", lambda self: "patched")
    with patches.suspended():
        assert not patches.installed
    assert not patches.installed
    patches.install()
    with pytest.raises(KeyError), patches.suspended():
        assert Owner().inherited() == "base"
        raise KeyError
    assert Owner().inherited() == "patched"
    patches.remove()


def test_a_change_added_later_takes_effect_at_once() -> None:
    patches = Patches()
    patches.install()
    patches.set(Owner, "later", 1)
    assert Owner.later == 1  # type: ignore[attr-defined]
    patches.remove()
    assert not hasattr(Owner, "later")


def test_somebody_elses_patch_on_top_is_left_alone() -> None:
    patches = Patches()
    patches.set(Owner, "inherited", lambda self: "ours")
    patches.install()
    ours = Owner.inherited
    Owner.inherited = lambda self: "theirs over " + ours(self)  # type: ignore[method-assign]
    try:
        with pytest.warns(RuntimeWarning, match=r"Owner\.inherited"):
            patches.remove()
        assert Owner().inherited() == "theirs over ours"
        patches.install()
        assert Owner().inherited() == "theirs over ours"
    finally:
        del Owner.inherited


def test_those_who_hold_caches_are_told() -> None:
    told = []
    patches = Patches()
    patches.after_change(lambda: told.append(patches.installed))
    patches.install()
    with patches.suspended():
        pass
    patches.remove()
    assert told == [True, False, True, False]


def test_a_wrapped_function_goes_by_the_name_of_the_original() -> None:
    module, other = types.ModuleType("package.module"), types.ModuleType("other")

    def function() -> str:
        """The original."""
        return "original"

    module.function = other.function = function  # type: ignore[attr-defined]
    patches = Patches()
    patches.wrap(module, lambda: "wrapped", "function", also=[other])
    patches.wrap(Owner, lambda self: "wrapped", "inherited")
    patches.install()
    assert (module.function(), other.function(), Owner().inherited()) == ("wrapped", "wrapped", "wrapped")
    assert (module.function.__module__, module.function.__qualname__) == ("package.module", "function")
    assert module.function.__doc__ == "The original."
    assert (Owner.inherited.__module__, Owner.inherited.__qualname__) == (__name__, "Owner.inherited")
    patches.remove()
    assert module.function is other.function is function
    assert Owner().inherited() == "base"
