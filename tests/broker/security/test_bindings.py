"""Rules say the same whether they are taken as a whole or one permission at a time."""

from operator import methodcaller

from hypothesis import given
from hypothesis import strategies as st

from broker.security.acls import Denial, Operation, Question, Resource, Rule
from broker.security.bindings import Binding, bindings_of, with_bindings, without_bindings

NAMES = st.sampled_from(["*", "a", "a*", "ab", "ab*", "**"])
RULES = st.lists(
    st.builds(
        lambda kind, **values: kind(**values),
        kind=st.sampled_from([Rule, Denial]),
        principal=st.sampled_from(["User:alice", "User:*"]),
        operations=st.lists(st.sampled_from(Operation), min_size=1, max_size=3).map(tuple),
        topics=st.lists(NAMES, min_size=1, max_size=3).map(tuple),
        groups=st.lists(NAMES, max_size=2).map(tuple),
        transactional_ids=st.lists(NAMES, max_size=1).map(tuple),
        cluster=st.booleans(),
        hosts=st.sampled_from([("*",), ("10.0.0.1",), ("10.0.0.1", "*")]),
    ),
    max_size=4,
)


@given(RULES, RULES)
def test_what_is_added_is_there_and_nothing_else(rules: list[Rule], others: list[Rule]) -> None:
    added = bindings_of(others)
    expected = list(dict.fromkeys([*bindings_of(rules), *added]))
    assert set(bindings_of(with_bindings(rules, added))) == set(expected)
    assert with_bindings(rules, bindings_of(rules)) == tuple(rules)


@given(RULES, st.data())
def test_what_is_removed_is_gone_and_nothing_else(rules: list[Rule], data: st.DataObject) -> None:
    bindings = bindings_of(rules)
    removed = set(data.draw(st.lists(st.sampled_from(bindings)))) if bindings else set()
    rest = without_bindings(rules, removed)
    assert set(bindings_of(rest)) == set(bindings) - removed
    assert without_bindings(rules, ()) == tuple(rules)


@given(
    RULES,
    st.sampled_from(Operation),
    st.sampled_from(["a", "ab", "abc", "b", "*"]),
    st.sampled_from(["10.0.0.1", "10.0.0.2"]),
)
def test_the_same_is_allowed_and_denied_after_rules_were_taken_apart(
    rules: list[Rule], operation: Operation, name: str, host: str
) -> None:
    apart = with_bindings((), bindings_of(rules))
    for resource in Resource:
        question = Question("User:alice", operation, resource, name, host)
        for answer in (Rule.allows, Rule.denies):
            asked = methodcaller(answer.__name__, question)
            assert any(map(asked, apart)) == any(map(asked, rules))


def test_permissions_are_named_as_kafka_names_them() -> None:
    rule = Rule(
        principal="User:alice",
        operations=(Operation.READ, Operation.WRITE),
        topics=("orders*", "*"),
        cluster=True,
    )
    read, write = Operation.READ, Operation.WRITE
    assert bindings_of([rule, rule]) == [
        Binding("User:alice", read, Resource.TOPIC, "orders", prefixed=True),
        Binding("User:alice", write, Resource.TOPIC, "orders", prefixed=True),
        Binding("User:alice", read, Resource.TOPIC, "*"),
        Binding("User:alice", write, Resource.TOPIC, "*"),
        Binding("User:alice", read, Resource.CLUSTER, "kafka-cluster"),
        Binding("User:alice", write, Resource.CLUSTER, "kafka-cluster"),
    ]
    denial = Denial(
        principal="User:alice", operations=(read,), groups=("g",), hosts=("10.0.0.1", "10.0.0.2")
    )
    assert bindings_of([denial]) == [
        Binding("User:alice", read, Resource.GROUP, "g", host=host, denied=True)
        for host in ("10.0.0.1", "10.0.0.2")
    ]
