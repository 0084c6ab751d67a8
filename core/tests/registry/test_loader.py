"""What loading promises: stages, nothing left behind by a failure, and one plugin's fault that stays its own."""

import sys
import types

import pytest

from specdec_core import hookimpl
from specdec_core.errors import (
    ConfigError,
    ImportStageError,
    MakeStageError,
    MetadataStageError,
    PluginError,
    RegisterStageError,
    TraitsStageError,
    VersionStageError,
)
from specdec_core.protocols import Controller
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry


def load(site, name, kind="proposer"):
    registry = site.registry()
    return registry, registry.load(registry.catalog.find(kind, name))


def refusal(plugin, kind="proposer"):
    registry = Registry(Catalog.of([]).with_local({"mine": plugin}))
    with pytest.raises(PluginError) as caught:
        registry.find(kind, "mine")
    assert not registry.manager.get_plugins()
    assert registry.loaded == ()
    return caught.value


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import module_that_is_missing", ModuleNotFoundError),
        ("raise SystemExit(3)", SystemExit),
        ("raise RuntimeError('no licence')", RuntimeError),
        ("def broken(:", SyntaxError),
    ],
)
def test_an_import_that_fails_leaves_nothing_and_says_who_where_and_why(site, source, cause):
    site.proposer("bad", "import specdec_plugin_bad.part\n" + source)
    (site.folder / "specdec_plugin_bad" / "part.py").write_text("")
    site.proposer("good")
    registry = site.registry()
    before = set(sys.modules)
    with pytest.raises(ImportStageError) as caught:
        registry.load(registry.catalog.find("proposer", "bad"))
    error = caught.value
    assert isinstance(error.__cause__, cause)
    assert (error.stage, error.record.distribution, error.record.name) == ("import", "specdec-plugin-bad", "bad")
    assert error.next_step
    assert "specdec-plugin-bad 1.0" in str(error)
    assert not [name for name in set(sys.modules) - before if name.startswith("specdec_plugin_bad")]
    assert not registry.manager.get_plugins()
    assert registry.load(registry.catalog.find("proposer", "good")).name == "good"


def test_a_missing_module_is_named_and_no_distribution_of_that_name_advised(site):
    site.proposer("bad", "import module_that_is_missing.part")
    with pytest.raises(ImportStageError, match="the distribution that has the module 'module_that_is_missing'"):
        load(site, "bad")


def test_keyboard_interrupt_is_not_swallowed_but_still_leaves_nothing(site):
    site.proposer("slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(site, "slow")
    assert not [name for name in sys.modules if name.startswith("specdec_plugin_slow")]


def test_a_module_that_was_loaded_before_survives_the_failure_of_another_entry_point(site):
    points = {"specdec.proposers.v1": {"good": "two_faces.good", "bad": "two_faces.bad"}}
    proposer = "from specdec_core import hookimpl\n@hookimpl\ndef specdec_make_proposer(ctx): ...\n"
    modules = {"two_faces/__init__.py": "", "two_faces/good.py": proposer, "two_faces/bad.py": "1 / 0"}
    site.dist("two-faces", points, modules)
    registry, _ = load(site, "good")
    with pytest.raises(ImportStageError):
        registry.load(registry.catalog.find("proposer", "bad"))
    assert "two_faces.good" in sys.modules
    assert "two_faces.bad" not in sys.modules
    assert [each.name for each in registry.loaded] == ["good"]


def test_registration_that_fails_half_way_leaves_no_hook_behind(site):
    site.proposer(
        "half",
        """
        from specdec_core import hookimpl

        @hookimpl
        def specdec_check(ctx): ...

        @hookimpl
        def specdec_make_proposer(ctx, warp_factor): ...
        """,
    )
    registry = site.registry()
    with pytest.raises(RegisterStageError):
        registry.load(registry.catalog.find("proposer", "half"))
    assert not registry.manager.get_plugins()
    assert not registry.manager.hook.specdec_check.get_hookimpls()
    assert "specdec_plugin_half.plugin" not in sys.modules


def test_a_failure_inside_the_manager_itself_is_rolled_back(monkeypatch):
    class Mine:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

    registry = Registry(Catalog.of([]).with_local({"mine": Mine()}))
    register = registry.manager.register

    def fail_late(plugin, name):
        register(plugin, name=name)
        raise SystemExit("too late")

    monkeypatch.setattr(registry.manager, "register", fail_late)
    with pytest.raises(RegisterStageError) as caught:
        registry.find("proposer", "mine")
    assert isinstance(caught.value.__cause__, SystemExit)
    assert not registry.manager.get_plugins()
    assert not registry.observed("specdec_make_proposer")


def test_an_unknown_hook_is_refused_with_the_nearest_one():
    class Mine:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

        @hookimpl
        def specdec_method_trait(self, method): ...

    error = refusal(Mine())
    assert error.stage == "register"
    assert "specdec_method_trait;" in error.problem
    assert "the nearest is specdec_method_traits" in error.problem


def test_an_unknown_hook_may_be_meant_for_another_host():
    class Mine:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

        @hookimpl(optionalhook=True)
        def specdec_other_host_config(self, method, whatever): ...

    registry = Registry(Catalog.of([]).with_local({"mine": Mine()}))
    assert "specdec_other_host_config" in registry.find("proposer", "mine").hooks


def test_an_integration_adds_hooks_of_its_own():
    from specdec_core.markers import hookspec

    module = types.ModuleType("more_hooks")

    @hookspec(firstresult=True)
    def specdec_host_config(method): ...

    module.specdec_host_config = specdec_host_config

    class Mine:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

        @hookimpl(optionalhook=True)
        def specdec_host_config(self, method):
            return f"for {method}"

    registry = Registry(Catalog.of([]).with_local({"mine": Mine()}), hookspecs=[module])
    assert registry.call(registry.find("proposer", "mine"), "specdec_host_config", method="mine") == "for mine"


def test_wrong_argument_names_are_refused_with_the_signature():
    class Mine:
        @hookimpl
        def specdec_make_proposer(self, ctx, optoins): ...

    error = refusal(Mine())
    assert "specdec_make_proposer(ctx, optoins) asks for optoins" in error.problem
    assert "it has ctx, build" in error.problem
    assert error.record.name == "mine"


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: type("Mine", (), {"specdec_make_proposer": hookimpl(lambda self, method: None)}), "the class Mine"),
        (lambda: None, "None"),
        (lambda: object(), "does not implement specdec_make_proposer"),
    ],
)
def test_what_is_no_plugin_object_is_refused(make, word):
    assert word in refusal(make()).problem


def test_a_hook_without_its_mark_is_refused():
    class Mine:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

        def specdec_check(self, ctx): ...

    assert "specdec_check is defined but not marked" in refusal(Mine()).problem


def test_a_wrapper_is_refused_as_it_would_never_run():
    class Mine:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

        @hookimpl(wrapper=True)
        def specdec_check(self, ctx):
            return (yield)

    assert "wrapper" in refusal(Mine()).problem


def test_an_object_must_be_what_it_is_named_as():
    class Mine:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

    assert "specdec_make_verifier" in refusal(Mine(), "verifier").problem


def test_loading_twice_and_under_two_names_registers_once(site):
    points = {"specdec.proposers.v1": {"one": "twin:plugin", "two": "twin:plugin"}}
    source = """
    from specdec_core import hookimpl

    class Plugin:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

        @hookimpl
        def specdec_check(self, ctx):
            return ctx

    plugin = Plugin()
    """
    site.dist("twin", points, {"twin.py": source})
    registry, one = load(site, "one")
    again, two = registry.find("proposer", "one"), registry.find("proposer", "two")
    assert again is one
    assert two.plugin is one.plugin
    assert len(registry.manager.get_plugins()) == 1
    assert [registry.call(each, "specdec_check", ctx=each.name) for each in (one, two)] == ["one", "two"]


def test_one_object_given_by_hand_and_by_entry_point_is_registered_once(site):
    site.proposer("alpha")
    registry, loaded = load(site, "alpha")
    by_hand = registry.load(Catalog.of([]).with_local({"hand": loaded.plugin}).find("proposer", "hand"))
    assert by_hand.plugin is loaded.plugin
    assert len(registry.manager.get_plugins()) == 1


def test_registries_share_nothing(site):
    site.proposer("alpha")
    first, _ = load(site, "alpha")
    second = site.registry()
    assert second.loaded == ()
    assert not second.observed("specdec_make_proposer")
    assert first.scratch().loaded == ()


def test_records_that_cannot_work_are_refused_before_any_import(site, record):
    registry = site.registry()
    for status, error in [("needs newer core", VersionStageError), ("conflict", MetadataStageError)]:
        with pytest.raises(error, match="because"):
            registry.load(record("proposer", "x", "missing_module:p", status=status, reason="because"))
    with pytest.raises(MetadataStageError):
        registry.load(record("proposer", "x", "no value"))


def test_calls_reach_one_plugin_only_with_what_it_asks_for():
    class One:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

        @hookimpl
        def specdec_verifier_check(self, options, *, method, extra="mine"):
            return (options, method, extra)

    class Two:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

        @hookimpl
        def specdec_check(self):
            raise AssertionError("not asked")

    registry = Registry(Catalog.of([]).with_local({"one": One(), "two": Two()}))
    one = registry.find("proposer", "one")
    registry.find("proposer", "two")
    answer = registry.call(one, "specdec_verifier_check", method="one", config=1, options=2, traits=3)
    assert answer == (2, "one", "mine")
    assert registry.call(one, "specdec_method_traits", ctx="one") is None


@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(1)])
def test_a_hook_that_raises_becomes_the_error_of_its_stage(error):
    class Mine:
        @hookimpl
        def specdec_make_proposer(self, ctx): ...

        @hookimpl
        def specdec_method_traits(self, ctx):
            raise error

    registry = Registry(Catalog.of([]).with_local({"mine": Mine()}))
    mine = registry.find("proposer", "mine")
    with pytest.raises(TraitsStageError, match="specdec_method_traits raised") as caught:
        registry.call(mine, "specdec_method_traits", ctx="mine")
    assert caught.value.__cause__ is error
    with pytest.raises(MakeStageError):
        registry.call(mine, "specdec_method_traits", stage="make", ctx="mine")


def test_a_refusal_in_our_own_words_is_passed_on_as_it_is():
    class Mine:
        @hookimpl
        def specdec_make_proposer(self, ctx):
            raise ConfigError("k must be even")

    registry = Registry(Catalog.of([]).with_local({"mine": Mine()}))
    with pytest.raises(ConfigError, match=r"\Ak must be even\Z"):
        registry.call(registry.find("proposer", "mine"), "specdec_make_proposer", ctx="mine")


def test_a_make_hook_must_build_what_the_protocol_says():
    class Mine:
        @hookimpl
        def specdec_make_controller(self, method):
            return object()

    registry = Registry(Catalog.of([]).with_local({"mine": Mine()}))
    mine = registry.find("extension", "mine")
    with pytest.raises(MakeStageError, match="lacks limit, observe"):
        registry.make(mine, "specdec_make_controller", Controller, method="mine")
