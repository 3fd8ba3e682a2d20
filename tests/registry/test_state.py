"""What records of `_schemas` add up to."""

from __future__ import annotations

from kmr.registry.records import (
    LARGEST,
    ClearSubjectKey,
    ConfigKey,
    ConfigValue,
    DeleteSubjectKey,
    Mode,
    ModeKey,
    ModeValue,
    SchemaKey,
    SchemaUse,
    SchemaValue,
    SubjectVersion,
)
from kmr.registry.schemas.compatibility import Level
from kmr.registry.state import RegistryState, identity_of


def put(state: RegistryState, subject: str, version: int, schema_id: int, text: str = "t") -> None:
    value = SchemaValue(subject=subject, version=version, id=schema_id, schema=text)
    state.apply(SchemaKey(subject, version), value)


def test_versions_are_in_order_and_found_by_id_and_identity() -> None:
    state = RegistryState()
    put(state, "s", 2, 2, "b")
    put(state, "s", 1, 1, "a")
    put(state, "r", 1, 2, "b")
    assert [each.version for each in state.versions("s")] == [1, 2]
    assert [(each.subject, each.version) for each in state.by_id(2)] == [("r", 1), ("s", 2)]
    assert state.id_of(identity_of(state.by_id(2)[0])) == 2
    assert (state.subjects, state.max_id) == (["r", "s"], 2)
    assert [each.subject for each in state] == ["r", "s", "s"]


def test_a_deleted_subject_keeps_its_versions_until_they_are_removed() -> None:
    state = RegistryState()
    put(state, "s", 1, 1)
    put(state, "s", 2, 2)
    state.apply(DeleteSubjectKey("s"), SubjectVersion("s", 1))
    assert [each.version for each in state.versions("s")] == [2]
    assert [each.version for each in state.versions("s", deleted=True)] == [1, 2]
    state.apply(ClearSubjectKey("s"), SubjectVersion("s", 1))
    assert state.by_id(1) == []
    state.apply(SchemaKey("s", 2), None)
    assert (state.subjects, state.max_id) == ([], 2)


def test_a_version_that_is_replaced_leaves_nothing_behind() -> None:
    state = RegistryState()
    put(state, "s", 1, 1, "a")
    before = identity_of(state.by_id(1)[0])
    put(state, "s", 1, 5, "b")
    assert state.by_id(1) == []
    assert state.id_of(before) is None


def test_references_count_until_the_schema_that_has_them_is_deleted() -> None:
    state = RegistryState()
    put(state, "used", 1, 1)
    user = SchemaValue(
        subject="user", version=1, id=2, schema="u", references=(SchemaUse("n", "used", 1),)
    )
    state.apply(SchemaKey("user", 1), user)
    assert state.referring("used", 1) == [2]
    state.apply(DeleteSubjectKey("user"), SubjectVersion("user", 1))
    assert state.referring("used", 1) == []


def test_settings_are_set_and_deleted() -> None:
    state = RegistryState()
    state.apply(ConfigKey(None), ConfigValue(compatibilityLevel=Level.NONE))
    state.apply(ModeKey("s"), ModeValue(mode=Mode.READONLY))
    assert set(state.configs) == {None}
    assert state.modes == {"s": "READONLY"}
    state.apply(ConfigKey(), None)
    state.apply(ModeKey("s"), None)
    assert (state.configs, state.modes) == ({}, {})


def test_equal_schemas_under_two_ids_keep_the_other_when_one_is_gone() -> None:
    state = RegistryState()
    put(state, "a", 1, 7)
    put(state, "b", 1, 3)
    identity = identity_of(state.by_id(3)[0])
    assert state.id_of(identity) == 3
    state.apply(SchemaKey("b", 1), None)
    assert state.id_of(identity) == 7
    state.apply(SchemaKey("a", 1), None)
    assert state.id_of(identity) is None


def test_ids_go_on_after_the_highest_until_it_is_the_largest() -> None:
    state = RegistryState()
    assert state.free_id == 1
    put(state, "a", 1, 5)
    assert state.free_id == 6
    put(state, "b", 1, LARGEST)
    assert state.free_id == 1
