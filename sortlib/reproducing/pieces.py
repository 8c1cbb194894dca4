"""The fixed parts of a script, as text; words in capitals between angle brackets are filled in."""

from __future__ import annotations


def filled(text: str, words: dict) -> str:
    """The text with its ``<<WORDS>>`` replaced."""
    for name, value in words.items():
        text = text.replace(f"<<{name}>>", value)
    return text


TENSORS = '''def tensors(result):
    """All tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    items = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors(item)]'''

SETTINGS = '''@contextlib.contextmanager
def settings(side):
    """Flags below torch.backends as the side wants them."""
    before = []
    for name, value in side.get("backends", {}).items():
        *homes, last = name.split(".")
        holder = torch.backends
        for home in homes:
            holder = getattr(holder, home)
        before.append((holder, last, getattr(holder, last)))
        setattr(holder, last, value)
    try:
        yield
    finally:
        for holder, last, value in before:
            setattr(holder, last, value)'''

AUTOCAST = '''def autocast(side):
    """Automatic mixed precision, where the side has it."""
    if "autocast" in side:
        return torch.autocast(side["device"], getattr(torch, side["autocast"]))
    return contextlib.nullcontext()'''

COMPILED = '''def function_of(side):
    """The call as this side runs it."""
    return torch.compile(call, dynamic=False) if "compile" in side else call'''

TIMED = '''def results(function, operands):
    """The outputs of the call, and the seconds that it takes at best."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        outputs = [tensor.cpu() for tensor in tensors(function(*operands))]
        seconds.append(time.perf_counter() - start)
    return [*outputs, torch.tensor(min(seconds), dtype=torch.float64)]'''

GRADIENTS = '''def results(function, operands):
    """The outputs of the call, and the gradients of its inputs under a drawn gradient of the outputs."""
    leaves = [t.detach().requires_grad_() if place in DIFFERENTIATED else t for place, t in enumerate(operands)]
    with torch.enable_grad():
        outputs = tensors(function(*leaves))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    used = [(k, output) for k, output in enumerate(outputs) if output.requires_grad]
    given = [upstream_of(output.detach(), f"{SEED}/{k}") for k, output in used]
    found = [None] * len(wanted)
    if used:
        found = torch.autograd.grad([output for _, output in used], wanted, given, allow_unused=True)
    found = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, wanted)]
    return [tensor.detach() for tensor in [*outputs, *found]]'''

RUN = '''def run(name, operands):
    """The call on one side: its outputs, or its exception."""
    side = SIDES[name]<<DEVICE>>
    with <<SETTINGS>>torch.no_grad()<<AUTOCAST>>:
        try:
            return {"outputs": <<FOUND>>}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}'''

WIDE = '''def wide(tensor):
    """The same numbers in float64."""
<<COMPLEX>>    return tensor.double()<<FAR>><<OTHERS>>'''

WIDE_COMPLEX = """    if tensor.is_complex():
        return tensor.to(torch.complex128)
"""

WIDE_OTHERS = " if tensor.is_floating_point() else tensor"

TRUTH = '''def truth(operands):
    """The call in float64 on the same inputs."""
    side = SIDES["reference"]<<DEVICE>>
    with <<SETTINGS>>torch.no_grad():
        try:
            return {"outputs": <<RIGHT>>}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}'''

PREPARE = '''def prepare(operands):
    """What the earlier calls hand to the call, computed on the reference; both sides are given the same."""
    side = SIDES["reference"]<<DEVICE>>
    with <<SETTINGS>>torch.no_grad()<<AUTOCAST>>:
        return [t.cpu() for t in before(*(place(t, side) for t in operands))]'''

ALL = '{**{name: run(name, operands) for name in SIDES}, "truth": truth(operands)}'

SIDES_ONLY = "{name: run(name, operands) for name in SIDES}"

HERE = '''def both_sides():
    """Results of every side<<AND_TRUTH>>."""
    operands = <<OPERANDS>>
    return <<RESULTS>>'''

APART = '''def both_sides():
    """Results of every side<<AND_TRUTH>>, each side from a process of its own."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        torch.save(inputs(), home / "operands.pt")
        for <<EACH>>:
            command = [<<PYTHON>>, __file__, name, folder]
            try:
                done = subprocess.run(command, <<ENV>>timeout=TIMEOUT)
                ended = {"crash": f"the process ended with status {done.returncode}"}
            except subprocess.TimeoutExpired:
                ended = {"hang": f"no answer within {TIMEOUT:g} s"}
            if not (home / f"{name}.started").exists():
                ended = {"failed": f"the call was not reached: {next(iter(ended.values()))}"}
            file = home / f"{name}.pt"
            found[name] = torch.load(file) if file.exists() else ended<<TRUTH>>
    return found'''

READ_TRUTH = """
        file = home / "truth.pt"
        found["truth"] = torch.load(file) if file.exists() else {"failed": "no float64 result"}"""

WORK = '''def work(name, folder):
    """What the process of one side does."""
    home = Path(folder)<<OPTIONAL>>
    operands = torch.load(home / "operands.pt")<<PREPARED>>
    (home / f"{name}.started").touch()
    torch.save(run(name, operands), home / f"{name}.pt")<<TRUTH>>'''

WRITE_TRUTH = """
    if name == "reference":
        torch.save(truth(operands), home / "truth.pt")"""

PREPARED = """
    if name == "reference":
        operands = prepare(operands)
        torch.save(operands, home / "operands.pt")"""

ONLY_APART = {
    "imports": '\n    for module in SIDES[name].get("imports", ()):  # registers the backend\n'
    "        importlib.import_module(module)",
    "threads": '\n    if "threads" in SIDES[name]:\n        torch.set_num_threads(SIDES[name]["threads"])',
}

NUMBERS = '''def numbers(tensor):
    """Its values in one dimension, in float64."""
<<COMPLEX>>    return tensor.double().reshape(-1)'''

NUMBERS_COMPLEX = "    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor\n"

DISTANCE = '''def distance(a, b):
    """The largest |a - b| of two lists of tensors, over the elements that are finite in both."""
    largest = 0.0
    for x, y in zip(a, b):
        x, y = numbers(x), numbers(y)
        finite = x.isfinite() & y.isfinite()
        if finite.any():
            largest = max(largest, float((x - y)[finite].abs().max()))
    return largest'''

FOUND = "[t.cpu() for t in tensors(<<FUNCTION>>(*[place(t, side) for t in operands]))]"

RIGHT = "[t.cpu() for t in tensors(<<EXACT>>(*[wide(place(t, side)) for t in operands]))]"

# The same where ``results`` says what the results of a function are.
FOUND_BY_RESULTS = "[t.cpu() for t in results(<<FUNCTION>>, [place(t, side) for t in operands])]"

RIGHT_BY_RESULTS = "[t.cpu() for t in results(<<EXACT>>, [wide(place(t, side)) for t in operands])]"

COMPARED = "compared(<<FOUND>>, operands)"

ODD = "odd([<<FOUND>> for _ in range(CALLS)])"

ODD_ONE = '''def odd(calls):
    """Of several calls on the same operands, the one whose outputs are farthest from those of the others."""
    return max(calls, key=lambda outputs: sum(distance(outputs, other) for other in calls))'''

SHOW = '''def show(found):
    """Print what every side returned."""
    torch.set_printoptions(threshold=64, edgeitems=3, precision=8, linewidth=110)
    for name, result in found.items():
        title = <<TITLE>>
        if "outputs" not in result:
            print(f"{title}: {next(iter(result.values()))}")
            continue
        for label, value in zip(labels(result["outputs"]), result["outputs"]):
            print(f"{title}, {label}:\\n{value}")'''

SIDE = """f"{name} ({SIDES[name]['name']})\""""

SIDE_OR_TRUTH = """f"{name} ({SIDES[name]['name']})" if name in SIDES else "<<TRUTH>>\""""

LABELS = '''def labels(results):
    """What each tensor of a result is."""
    return ["<<WORD>>"] if len(results) == 1 else [f"<<WORD>> {k}" for k in range(len(results))]'''

LABELS_AND_MORE = '''def labels(results):
    """What each tensor of a result is."""
    more = <<MORE>>
    count = len(results) - len(more)
    return (["<<WORD>>"] if count == 1 else [f"<<WORD>> {k}" for k in range(count)]) + more'''

_ERRORS = """    missing = [name for name in found if "outputs" not in found[name]]
    if missing:
        print(f"no outputs of {', '.join(missing)}")
        return False
    right = found["truth"]["outputs"]
    error = {name: distance(found[name]["outputs"], right) for name in SIDES}
    for name in SIDES:
        print(f"largest error of the {name} against float64: {error[name]:.3g}")
    print(f"largest error that rounding explains: {LIMIT:.3g}")
"""

_ENDED = """    for name in SIDES:
        result = found[name]
        print(f"{name}: {'returned' if 'outputs' in result else next(iter(result.values()))}")
"""

_KINDS = """    kinds = {}
    for name, result in found.items():
        if "outputs" not in result:
            print(f"no outputs of {name}")
            continue
        values = torch.cat([numbers(tensor) for tensor in result["outputs"]])
        kinds[name] = torch.stack([values.isnan(), values.isposinf(), values.isneginf()])
        nan, above, below = (int(count) for count in kinds[name].sum(1))
        print(f"{name}: {nan} NaN, {above} +inf, {below} -inf among {values.numel()}")
    if not {"reference", "candidate"} <= kinds.keys():
        return False
"""

SHOWN = {
    "accuracy": f'''def judge(found):
    """Whether the wrong side is beyond what rounding explains, and clearly worse than the other."""
{_ERRORS}    wrong = error[WRONG] > LIMIT and error[WRONG] >= TIMES * error[OTHER]
    if wrong:
        print(f"the {{WRONG}} is wrong by {{error[WRONG]:.3g}}, the {{OTHER}} only by {{error[OTHER]:.3g}}")
    return wrong''',
    "accuracy both": f'''def judge(found):
    """Whether both sides are beyond what rounding explains."""
{_ERRORS}    if min(error.values()) > LIMIT:
        print("both sides are wrong")
    return min(error.values()) > LIMIT''',
    "config": f'''def judge(found):
    """Whether the error is beyond what rounding explains, and gone in full precision."""
{_ERRORS}    if error["candidate"] > LIMIT >= error["strict"]:
        print("the candidate's error is gone in full precision")
    return error["candidate"] > LIMIT >= error["strict"]''',
    "nan": f'''def judge(found):
    """Whether numbers are missing on one side only."""
{_KINDS}    there = not torch.equal(kinds["reference"], kinds["candidate"])
    if there:
        print(f"the {{WRONG}} has no number where the {{OTHER}} has one")
    return there''',
    "nan both": f'''def judge(found):
    """Whether numbers are missing on both sides where float64 has one."""
{_KINDS}    both = kinds["reference"] | kinds["candidate"]
    if "truth" in kinds:  # where float64 has the same, it is right
        both &= ~kinds["truth"]
    if both.any():
        print(f"{{int(both.any(0).sum())}} elements are no numbers on both sides where float64 has one")
    return bool(both.any())''',
    "slow": '''def judge(found):
    """Whether the wrong side takes many times as long."""
    if not all("outputs" in found[name] for name in SIDES):
        return False
    seconds = {name: float(found[name]["outputs"][-1]) for name in SIDES}
    for name in SIDES:
        print(f"{name}: {seconds[name]:.3g} s")
    return seconds[WRONG] >= TIMES * seconds[OTHER]''',
    "values": '''def judge(found):
    """Whether the results differ, which no rounding explains for whole numbers."""
    if not all("outputs" in found[name] for name in SIDES):
        return False
    pairs = list(zip(found["reference"]["outputs"], found["candidate"]["outputs"]))
    differing = sum(int((numbers(a) != numbers(b)).sum()) for a, b in pairs)
    print(f"{differing} of {sum(a.numel() for a, _ in pairs)} elements differ")
    return differing > 0''',
    "share": '''def judge(found):
    """Whether the wrong side drops another share of the elements than it should."""
    if not all("outputs" in found[name] for name in SIDES):
        return False
    apart = {}
    for name in SIDES:
        share, count = found[name]["outputs"][0].tolist()
        apart[name] = abs(share - SHARE) / (SHARE * (1 - SHARE) / max(count, 1)) ** 0.5
        print(f"{name}: {share:.2%} of {count:.0f} dropped, {apart[name]:.3g} standard deviations from {SHARE:.2%}")
    return apart[WRONG] > SIGMAS''',
    "form": '''def judge(found):
    """Whether the outputs differ in number, shape or dtype."""
    forms = {name: [(tuple(t.shape), str(t.dtype)) for t in found[name].get("outputs", [])] for name in SIDES}
    for name, form in forms.items():
        print(f"{name}: {form}")
    return forms["reference"] != forms["candidate"]''',
    "difference": '''def judge(found):
    """Whether the two sides differ by more than is tolerated."""
    if not all("outputs" in found[name] for name in SIDES):
        return False
    difference = distance(found["reference"]["outputs"], found["candidate"]["outputs"])
    print(f"largest difference: {difference:.3g}, tolerated: {LIMIT:.3g}")
    if "outputs" in found["truth"]:
        for name in SIDES:
            error = distance(found[name]["outputs"], found["truth"]["outputs"])
            print(f"largest error of the {name} against float64: {error:.3g}")
    return difference > LIMIT''',
    "ended": f'''def judge(found):
    """Whether the wrong side ends as expected, and the other does not."""
{_ENDED}    return EXPECTED in found[WRONG] and "outputs" in found[OTHER]''',
    "ended both": f'''def judge(found):
    """Whether both sides end as expected."""
{_ENDED}    return all(EXPECTED in found[name] for name in SIDES)''',
}

MAIN = '''def main():
    """Run both sides, print what they return and who is wrong."""
    print(f"torch {torch.__version__}")
    found = both_sides()
    show(found)
    there = judge(found)
    print("reproduced" if there else "NOT reproduced")
    return 0 if there else 1'''

START = """if __name__ == "__main__":
    sys.exit(main())"""

START_APART = """if __name__ == "__main__":
    sys.exit(work(*sys.argv[1:]) if len(sys.argv) > 1 else main())"""
