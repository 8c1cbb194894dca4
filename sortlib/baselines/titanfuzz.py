"""TitanFuzz: programs that a language model writes and completes.

Yinlin Deng, Chunqiu Steven Xia, Haoran Peng, Chenyuan Yang, Lingming Zhang: "Large Language Models Are Zero-Shot
Fuzzers: Fuzzing Deep-Learning Libraries via Large Language Models", ISSTA 2023. An independent implementation. The
published tool uses two models, one for seeds and one for gaps; here any model of the ``llm`` library does both, named
by the option ``model``. The option ``programs`` is a folder of existing programs (``*.py``), which are run as they are.

An attempt is a program; it is valid if it runs. It is run once while attempts are generated, in a process of its own,
and its API calls become a test case; tensors that it makes are drawn from their recorded features. A program that
fails outside an API call ends with a call that always fails and carries its message.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np

from sortlib.baselines.base import ASSERTION, Method, functional, pattern_id
from sortlib.baselines.definitions import definition
from sortlib.baselines.masking import OPERATORS, SPAN, calls_of, fitness, mask, parse, tidy
from sortlib.baselines.programs import ProgramRunner
from sortlib.errors import SortError
from sortlib.generation import CaseNode, TestCase

SEEDS = 25  # completions of the first prompt
POOL = 10  # programs that may be mutated further
BATCH = 30  # mutants of one choice of seed and operator
PRIOR = (1, 2)  # S and N of every operator at first
QUESTIONS = 10  # asked of the model for each attempt, at most
TIMEOUT = 10  # seconds for one program
RTOL, ATOL = 1e-2, 1e-3
FAILED = "python"  # target of the call that stands for a failure outside API calls

# The published prompt, for a model that completes, and before it what a model that answers needs to be told.
SEED_PROMPT = (
    "Write a short Python program that does these tasks. Answer with the program only.\n"
    '"""\nTask 1: Import the torch library\nTask 2: Generate input data\nTask 3: Call the API {call}\n"""\n'
)
FILL_PROMPT = (
    "Complete this Python program: replace every {span} by code, and change nothing else. Answer with the whole "
    "program only.\n\n{code}\n"
)


class TitanFuzz(Method):
    """See the module."""

    key, name, paper, whole = "titanfuzz", "TitanFuzz", "TitanFuzz", True
    ends = "there is no further program that calls it"

    def available(self, context=None):
        options = context.options if context else {}
        if options.get("programs"):
            folder = Path(options["programs"])
            return "" if folder.is_dir() else f"the folder of programs {folder}"
        if not options.get("model"):
            return ("a language model; install llm and a plug-in with a model, and name it as 'model' among the "
                    "baselines' options, or name a folder of 'programs'")  # fmt: skip
        try:
            _model(options["model"])
        except SortError as error:
            return str(error)
        return ""

    def attempts(self, api, count, context, variant=""):
        missing = self.available(context)
        if missing:
            raise SortError(f"TitanFuzz needs {missing}")
        target = functional(api)
        programs = self._written(target, context) if context.options.get("programs") else None
        with ProgramRunner(TIMEOUT) as runner:
            search = _Search(api, target, count, context, runner) if programs is None else None
            source = search.programs() if search else ((code, "written") for code in programs)
            for number, (code, note) in zip(range(count), source, strict=False):
                ran = runner.run(code)
                if search:
                    search.learn(code, ran.ended == "ok")
                yield _case(self.key, api, number, code, note, ran, context.seed)

    def repeats(self, context):
        return bool(context.options.get("programs"))  # a language model may answer differently

    def reason(self, api, context):
        if context.options.get("programs"):
            return f"no program in {context.options['programs']} calls it"
        return "the model wrote no program that calls it"

    def _written(self, target, context):
        files = sorted(Path(context.options["programs"]).rglob("*.py"))
        for file in files:
            try:
                code = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise SortError(f"{file}: cannot be read: {error}") from None
            tree = parse(code)
            if tree is not None and calls_of(tree, target):
                yield code

    def ending(self, nodes, variant):
        failed = next((n for n in nodes if n["status"] not in ("ok", "unreached") and n["side"] != "candidate"), None)
        failed = failed or next((n for n in nodes if n["status"] != "ok"), nodes[0])
        message = failed["message"]
        if failed["target"] == FAILED:
            message = str(failed["source"]).partition(": ")[2]
        return {"status": failed["status"], "side": failed["side"], "message": message}

    def oracle(self, nodes, row, variant):
        for node in nodes:
            message = str(node["message"])
            if node["status"] == "crash" or ASSERTION in message:
                return "crash", message
            if node["status"] == "exception" and node["side"] in ("reference", "candidate"):
                return "crash", f"fails on the {node['side']} only: {message}"
            if node["random"] or node["status"] != "ok":
                continue
            if _number(node.get("propagated_one_sided")):
                return "nan", f"{node['propagated_one_sided']:.2%} of the elements are finite on one side only"
            difference = _number(node.get("propagated_max_abs"))
            largest = max(abs(_number(node.get(f"reference_{end}"))) for end in ("minimum", "maximum"))
            if difference > ATOL + RTOL * largest:
                return "precision", f"|a-b| up to {difference:.3g}, where |a| is at most {largest:.3g}"
        return "", ""


def _number(value) -> float:
    return 0.0 if value is None or value != value else float(value)


def _case(method, api, number, code, note, ran, seed):
    nodes = [CaseNode(**{**node, "record": tuple(node["record"]), "source": note}) for node in ran.nodes]
    if ran.ended != "ok" and not ran.in_call or not nodes:
        text = f"{note}: {ran.message or 'the program calls no API on a tensor'}"
        nodes.append(CaseNode(FAILED, FAILED, [], ("", 0, len(nodes)), source=text))
    edges = [(src, dst, "input") for dst, node in enumerate(nodes) for src in sorted(_sources(node.arguments))]
    if nodes[-1].target == FAILED and len(nodes) > 1:
        edges.append((len(nodes) - 2, len(nodes) - 1, "program"))
    name = hashlib.sha256(json.dumps([method, api, number, code, seed]).encode()).hexdigest()[:16]
    return TestCase(name, pattern_id(method, "", api), tuple(nodes), tuple(edges), seed, "quantile")


def _sources(form) -> set:
    if isinstance(form, dict):
        found = {form["$from"][0]} if "$from" in form else set()
        return found.union(*(_sources(part) for part in form.values()))
    if isinstance(form, list):
        return set().union(*(_sources(part) for part in form))
    return set()


# ---- the language model ----


def _model(name):
    try:
        import llm
    except ImportError:
        raise SortError("the library llm; install it with: pip install llm") from None
    try:
        model = llm.get_model(name)
    except llm.UnknownModelError:
        raise SortError(
            f"a language model: llm knows none named {name!r}; 'llm models' lists those that it knows"
        ) from None
    key = getattr(model, "needs_key", None)
    if key and not llm.get_key(None, key, getattr(model, "key_env_var", None)):
        raise SortError(f"a key for {name}; set it with: llm keys set {key}")
    return model


def program_in(text: str) -> str:
    """The program in an answer: its first block of code, or all of it."""
    match = re.search(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", text, re.DOTALL)
    return (match[1] if match else text).strip() + "\n"


class _Search:
    """The evolutionary search for one API."""

    def __init__(self, api, target, count, context, runner):
        self.target = target
        self.rng = context.rng("titanfuzz", api)
        self.model = _model(context.options["model"])
        self.seeds = min(SEEDS, max(1, count // 3))
        self.batch = min(BATCH, max(1, math.ceil(count / len(OPERATORS))))
        self.questions = QUESTIONS * count
        self.pool, self.seen = {}, set()
        self.arms = {operator: list(PRIOR) for operator in OPERATORS}
        self.current = None

    def programs(self):
        """(program, how it came to be); whoever takes one says what became of it with ``learn``.

        Programs that no longer call the API are dropped; it ends when the model has been asked too often for that.
        """
        prompt = SEED_PROMPT.format(call=definition(self.target).text)
        made = 0
        while self.questions > 0:
            if made < self.seeds or not self.pool:
                self.current = None
                code = self._asked(prompt)
                if code is not None:
                    made += 1
                    yield code, "seed"
                continue
            operator, seed = self._operator(), self._seed()
            for _ in range(self.batch):
                masked = mask(seed, self.target, operator, self.rng) or seed
                self.arms[operator][1] += 1
                code = self._asked(FILL_PROMPT.format(span=SPAN, code=masked))
                if code is not None:
                    self.current = operator
                    yield code, f"{operator} mutant"

    def learn(self, code, valid):
        """Take a program that ran into the pool, and credit the operator that made it."""
        if not valid or code in self.seen:
            return
        self.seen.add(code)
        if self.current:
            self.arms[self.current][0] += 1
        if tidy(code, self.target) is None:
            return
        self.pool[code] = fitness(code)
        if len(self.pool) > POOL:
            del self.pool[min(self.pool, key=self.pool.get)]

    def _asked(self, prompt):
        """The model's program, tidied; as it is where it cannot be parsed, None where it does not call the API."""
        self.questions -= 1
        code = program_in(self._ask(prompt))
        return code if parse(code) is None else tidy(code, self.target)

    def _operator(self):
        """Thompson sampling: the operator with the largest draw from Beta(S, N - S)."""
        draws = {name: self.rng.beta(s, max(n - s, 1e-9)) for name, (s, n) in self.arms.items()}
        return max(draws, key=draws.get)

    def _seed(self):
        codes = list(self.pool)
        scores = np.array([self.pool[code] for code in codes], float)
        weights = np.exp(scores - scores.max())
        return codes[int(self.rng.choice(len(codes), p=weights / weights.sum()))]

    def _ask(self, prompt):
        try:
            return self.model.prompt(prompt).text()
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            raise SortError(f"the model {self.model.model_id} gave no answer: {first}") from None
