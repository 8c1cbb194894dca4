"""Which cases a small budget is spent on."""

from sortlib.features import CallRecord, TensorFeatures, contiguous_strides
from sortlib.generation import CaseNode, TestCase
from sortlib.variety import _layout, traits, varied


def record(number, shape=(2, 3), strides=None, dim=1, low=-1.0, high=1.0, dtype="float32"):
    from sortlib.apis import Argument

    given = TensorFeatures(dtype, shape, strides or contiguous_strides(shape), minimum=low, maximum=high)
    arguments = (Argument("input", given, "positional"), Argument("dim", dim, "positional"))
    return CallRecord("model", number, 0, "softmax", "torch.softmax", "layer", "model.py:1", arguments, ())


def case(name, *records, before=(), seed=0):
    """Calls of softmax with these records, each after calls of other APIs."""
    nodes = [CaseNode(api, api, [], ("model", 0, 100)) for api in before]
    nodes += [CaseNode("softmax", "torch.softmax", [], r.key) for r in records]
    edges = tuple((place, len(before), "input") for place in range(len(before)))
    return TestCase(name, "p", tuple(nodes), edges, seed, "quantile")


PLAIN, TRANSPOSED, LARGE, OTHER = (
    record(1), record(2, strides=(1, 2)), record(3, low=-1e6, high=1e6), record(4, dim=0))  # fmt: skip
KNOWN = {r.key: r for r in (PLAIN, TRANSPOSED, LARGE, OTHER)}


def names(cases):
    return [case.id for case in cases]


def test_what_is_unlike_the_calls_before_comes_first():
    cases = [case("one", PLAIN), case("again", PLAIN), case("third", PLAIN), case("turned", TRANSPOSED),
             case("large", LARGE), case("along 0", OTHER)]  # fmt: skip
    chosen = names(varied(cases, "softmax", KNOWN, 4))
    assert chosen[0] == "one" and set(chosen[1:]) == {"turned", "large", "along 0"}


def test_the_budget_is_spent_and_no_case_taken_twice():
    cases = [case("one", PLAIN), case("again", PLAIN), case("third", PLAIN), case("turned", TRANSPOSED)]
    chosen = names(varied(cases, "softmax", KNOWN, 60))
    assert sorted(chosen) == ["again", "one", "third", "turned"]
    assert chosen.index("turned") < 2  # and the others, of which there is nothing new to see, after it


def test_a_case_costs_all_its_calls():
    short, long = case("short", PLAIN, before=["add"]), case("long", TRANSPOSED, before=["add", "add", "add"])
    assert names(varied([long, short], "softmax", KNOWN, 60)) == ["short", "long"]
    assert names(varied([long, short], "softmax", KNOWN, 3)) == ["short"]
    assert varied([long, short], "softmax", KNOWN, 1) == []


def test_traits_are_those_of_the_api_and_its_neighbours():
    found = traits(case("one", LARGE, before=["add"]), "softmax", KNOWN)
    assert ("after", "add", "input") in found and ("size", ("input",), 6) in found
    assert ("negative", ("input",), True) in found and not any("100" in map(str, trait) for trait in found)
    assert traits(case("one", LARGE, before=["add"]), "relu", KNOWN) == set()


def test_layouts():
    def layout(shape, strides):
        return _layout(TensorFeatures("float32", shape, strides))

    assert layout((2, 3), (3, 1)) == ((0, 1), True)
    assert layout((2, 3), (1, 2)) == ((1, 0), True)
    assert layout((2, 3), (6, 2)) == ((0, 1), False)  # every other element of a row
    assert layout((2, 3), (0, 1)) == ((1, 0), False)  # expanded
    assert layout((1, 3), (77, 1)) == ((1,), True)  # the stride of a single element says nothing
