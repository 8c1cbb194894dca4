"""ACETest: inputs that solve the constraints of the library's own validation code.

Jingyi Shi, Yang Xiao, Yuekang Li, Yeting Li, Dongsong Yu, Chendong Yu, Hui Su, Yufeng Chen, Wei Huo: "ACETest:
Automated Constraint Extraction for Testing Deep Learning Operators", ISSTA 2023. An independent implementation. The
published tool reads C++ with LLVM, and its extractor was never released; this reads the installed PyTorch's Python
validation code (``validation``), so an API whose checks are only in C++ has no constraints and no tests.

Every path is solved with Z3, extended in the four published ways, and sampled with blocking of what was seen. What no
formula names is random, now and then enormous. Variant C is the CPU, G the accelerator, with the same inputs.
"""

from __future__ import annotations

import itertools

from sortlib.apis import Argument
from sortlib.baselines.base import DTYPES, Call, Method, build, crash, functional, tensor
from sortlib.baselines.definitions import definition
from sortlib.errors import SortError

LARGE, ALL_LARGE = 0.01, 0.01  # probability of a huge value; of an attempt in which all are
NDIM, SIZE, LIST, NUMBER = 6, 16, 128, 128  # free fields: at most these
WIDE = 65536  # other bound of whole numbers, beside 1024
PER_MODEL = 2  # attempts of one model
EFFORT = 2_000_000  # Z3's own unit of work for one check, so that results do not depend on the machine's speed
KINDS = 6  # choices of the arguments' types that are tried


class ACETest(Method):
    """See the module."""

    key, name, variants = "acetest", "ACETest", ("C", "G")
    ends = "the solver finds no further inputs that its constraints allow"

    def available(self, context=None):
        try:
            import z3  # noqa: F401
        except ImportError:
            return "the solver Z3; install it with: pip install z3-solver"
        return ""

    def attempts(self, api, count, context, variant=""):
        goals = self._goals(api, context)
        if not goals:
            return
        made, rounds = 0, {}
        target = functional(api)
        for goal in itertools.cycle(goals):
            if made >= count:
                return
            round_ = rounds[id(goal)] = rounds.get(id(goal), -1) + 1
            rng = context.rng(self.key, api, "model", made)
            model = goal.sample(rng, round_)
            if model is None:
                if not any(other.alive for other in goals):
                    return
                continue
            for _ in range(min(PER_MODEL, count - made)):
                rng = context.rng(self.key, api, made)
                arguments = _arguments(goal, model, rng)
                yield build(self.key, "", api, made, [Call(target, arguments, source=goal.source)], context.seed)
                made += 1

    def reason(self, api, context):
        return "the installed PyTorch has no Python validation code for it"

    def _goals(self, api, context):
        from sortlib.baselines.validation import functions_of, has_reference

        try:
            target = functional(api)
        except SortError:
            return []
        found = []
        for function in functions_of(api):
            rng = context.rng(self.key, api, "kinds", function.name)
            seen = set()
            for _ in range(KINDS):
                kinds = {p.name: _kind(p, rng) for p in definition(target).parameters}
                if tuple(kinds.items()) not in seen:
                    seen.add(tuple(kinds.items()))
                    found += goals_of(function, target, kinds)
        if not found and has_reference(api):  # nothing is checked there: all fields are free
            rng = context.rng(self.key, api, "kinds")
            kinds = [{p.name: _kind(p, rng) for p in definition(target).parameters} for _ in range(KINDS)]
            found = [Goal("no constraint found", target, each, {}, {}, []) for each in kinds]
        return _mixed(found)

    def ending(self, nodes, variant):
        row = nodes[0]
        if variant == "G" and row["side"] == "reference":
            return {"status": "ok", "side": "", "message": ""}
        side = "both" if variant == "G" and row["side"] == "candidate" else row["side"]
        return {"status": row["status"], "side": side, "message": row["message"]}

    def judges(self, variant, candidate):
        return variant != "G" or not str(candidate).startswith("cpu")

    def verdicts(self, outcomes, variant=""):
        asked = outcomes["candidate"].map(lambda candidate: self.judges(variant, candidate)).astype(bool)
        return super().verdicts(outcomes[asked], variant)

    def oracle(self, nodes, row, variant):
        return crash(row)


def _kind(parameter, rng) -> str:
    """The type that an argument has in one goal."""
    words = [w for w in ("tensor", "int", "float", "bool", "str", "list", "dtype", "scalar", "none")
             if w in parameter.types]  # fmt: skip
    word = words[int(rng.integers(len(words)))] if words else "tensor"
    return ("int", "float")[int(rng.integers(2))] if word == "scalar" else word


def _mixed(goals):
    """Goals in turn from each function and choice of types, so that few attempts see many of them."""
    queues = {}
    for goal in goals:
        queues.setdefault((goal.source, tuple(goal.kinds.items())), []).append(goal)
    rows = itertools.zip_longest(*queues.values())
    return [goal for row in rows for goal in row if goal is not None]


def goals_of(function, target, kinds) -> list:
    """The paths of one function for arguments of given types, each as a ``Goal``."""
    from sortlib.baselines import formulas, validation

    arguments, strings = {}, {}
    for name, kind in kinds.items():
        if kind == "tensor":
            arguments[name] = formulas.TensorArg(name)
        elif kind == "list":
            arguments[name] = formulas.ListArg(name)
        elif kind == "none":
            arguments[name] = None
        elif kind in ("int", "float", "bool", "str"):
            arguments[name] = formulas.Scalar(name, kind)
    paths = validation.Walker(arguments, strings).paths(function)
    unique = {str(path): path for path in paths if path}
    return [Goal(function.name, target, kinds, arguments, strings, path) for path in unique.values()]


class Goal:
    """One path through validation code: formulas over the arguments, and the solver that enumerates their models.

    Attributes
    ----------
    source : name of the validating function.
    kinds : parameter -> the type of its argument.
    alive : whether further models may exist.
    """

    def __init__(self, source, target, kinds, arguments, strings, formulas):
        import z3

        self.source, self.target, self.kinds = source, target, kinds
        self.arguments, self.strings, self.formulas = arguments, strings, formulas
        self.alive = True
        self._solvers = {}
        self.names = sorted({str(v) for f in formulas for v in _variables(f)})
        self._variables = {str(v): v for f in formulas for v in _variables(f)}
        self._z3 = z3

    def sample(self, rng, round_: int) -> dict | None:
        """Values of the variables that the formulas name, unlike all before; None if there are no more."""
        for attempt in range(4):
            extension = (round_ + attempt) % 4
            solver = self._solver(extension)
            if solver is None:
                continue
            solver.set("random_seed", int(rng.integers(1 << 30)))
            chosen = self._toward(solver, rng)
            if chosen == {}:  # no formula, so nothing to block
                return chosen
            if chosen is None:
                self._solvers[extension] = None
                continue
            solver.add(self._z3.Or(*(self._variables[name] != value for name, value in chosen.items())))
            return {name: _plain(value) for name, value in chosen.items()}
        self.alive = any(solver is not None for solver in self._solvers.values())
        return None

    def _toward(self, solver, rng):
        """A model near random values: each is taken over where the formulas allow it."""
        if solver.check() != self._z3.sat:
            return None
        solver.push()
        try:
            names = list(self.names)
            rng.shuffle(names)
            for name in names[:12]:
                variable = self._variables[name]
                if self._z3.is_bool(variable):
                    guess = variable == bool(rng.integers(2))
                else:
                    guess = variable == int(rng.integers(0, SIZE + 1))
                solver.push()
                solver.add(guess)
                if solver.check() != self._z3.sat:
                    solver.pop()
            if solver.check() != self._z3.sat:
                return None
            model = solver.model()
            return {name: model.eval(self._variables[name], model_completion=True) for name in self.names}
        finally:
            solver.pop(solver.num_scopes())

    def _solver(self, extension):
        if extension not in self._solvers:
            solver = self._z3.Solver()
            solver.set("rlimit", EFFORT)
            solver.add(*self.formulas)
            solver.add(*self._bounds(extension))
            self._solvers[extension] = solver
        return self._solvers[extension]

    def _bounds(self, extension):
        """The four extensions: sizes from 0 or 1, lists from 0 or 1 items with numbers up to 1024 or 65536."""
        smallest, shortest = extension % 2, extension // 2
        widest = (1024, WIDE)[extension // 2]
        z3 = self._z3
        for name, variable in self._variables.items():
            part = name.rpartition(".")[2]
            if z3.is_bool(variable):
                continue
            if part == "ndim":
                yield z3.And(variable >= 0, variable <= NDIM)
            elif part.startswith("size"):
                yield z3.And(variable >= smallest, variable <= SIZE)
            elif part == "dtype":
                yield z3.And(variable >= 0, variable < len(DTYPES))
            elif part == "len":
                yield z3.And(variable >= shortest, variable <= LIST)
            elif self.kinds.get(name.rpartition(".")[0]) == "str":
                yield z3.And(variable >= 0, variable <= len(self.strings))
            else:
                yield z3.And(variable >= -widest, variable <= widest)


def _variables(formula):
    import z3

    found, waiting, seen = [], [formula], set()
    while waiting:
        node = waiting.pop()
        if node.get_id() in seen:
            continue
        seen.add(node.get_id())
        if z3.is_const(node) and node.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            found.append(node)
        waiting += node.children()
    return found


def _plain(value):
    import z3

    if z3.is_bool(value):
        return z3.is_true(value)
    if z3.is_int_value(value):
        return value.as_long()
    return float(value.as_fraction()) if z3.is_rational_value(value) else float(value.approx(20).as_fraction())


# ---- from a model to arguments ----


def _arguments(goal, model, rng):
    everything = rng.random() < ALL_LARGE
    free = _Free(rng, 1.0 if everything else LARGE)
    parameters = definition(goal.target).parameters
    arguments = []
    for parameter in parameters:
        value = _value(parameter.name, goal, model, free)
        keyword = parameter.keyword_only or not parameter.required
        arguments.append(Argument(parameter.name, value, "keyword" if keyword else "positional"))
    return tuple(arguments)


def _value(name, goal, model, free):
    kind = goal.kinds[name]
    known = {key.rpartition(".")[2]: value for key, value in model.items() if key.rpartition(".")[0] == name}
    if kind == "tensor":
        # Where no formula names the number of dimensions, there are at least those whose sizes are named.
        named = 1 + max((int(part[4:]) for part in known if part.startswith("size")), default=-1)
        ndim = known["ndim"] if "ndim" in known else max(named, free.below(NDIM))
        sizes = [known.get(f"size{i}") for i in range(ndim)]
        sizes = [free.size() if size is None else size for size in sizes]
        dtype = DTYPES[known["dtype"]] if "dtype" in known else free.pick(DTYPES)
        return tensor(dtype, sizes, *free.tensor_bounds(dtype))
    if kind == "list":
        length = known.get("len", free.below(LIST))
        return [known.get(f"item{i}", free.number()) for i in range(length)]
    if kind == "str":
        texts = {number: text for text, number in goal.strings.items()}
        return texts.get(known.get("value"), free.text())
    if kind == "dtype":
        import torch

        return getattr(torch, free.pick(DTYPES))
    if kind == "none":
        return None
    if "value" in known:
        return float(known["value"]) if kind == "float" else known["value"]
    return {"int": free.number, "float": free.real, "bool": free.flag}[kind]()


class _Free:
    """Values of what no formula names."""

    def __init__(self, rng, large):
        self.rng, self.large = rng, large

    def _huge(self):
        return self.rng.random() < self.large

    def below(self, high):
        return int(self.rng.integers(high + 1))

    def pick(self, values):
        return values[int(self.rng.integers(len(values)))]

    def size(self):
        return 1 << int(self.rng.integers(32, 65)) if self._huge() else self.below(SIZE)

    def number(self):
        if self._huge():
            return int(self.rng.integers(-(1 << 62), 1 << 62)) * 4
        return int(self.rng.integers(-NUMBER, NUMBER + 1))

    def real(self):
        return float(self.rng.uniform(-1, 1)) * (2e64 if self._huge() else NUMBER)

    def flag(self):
        return bool(self.rng.integers(2))

    def text(self):
        return "".join(chr(97 + int(i)) for i in self.rng.integers(0, 26, 1 + self.below(9)))

    def tensor_bounds(self, dtype):
        return (0.0, 1.0) if dtype.startswith(("float", "bfloat", "complex", "bool")) else (0.0, float(NUMBER - 1))
