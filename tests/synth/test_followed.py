"""Statements of programs decide in C++ as the interpreter does: many programs in one, beside given losses."""

import re
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from tests.extras import PATIENCE
from tests.synth.building import CSRC, RUNTIME

from graphbraid.synth import ProgramError, Synthesis, from_program, parse_program
from graphbraid.synth.emit.control import script_lines
from graphbraid.synth.language.syntax import TOTAL_EPOCHS, Call, Train
from graphbraid.synth.recipe import Recipe, split_of
from graphbraid.synth.running import MOST_ROUNDS, Interpreter
from graphbraid.synth.training import _StoppedEarly, is_over

LOSSES = (2.5, 2.25, 1.0000000000000002, 1.0, 1.0, 0.1 + 0.2, 0.1 * 3, 0.3)
ACCURACIES = {"train": (0.5, 0.25, 0.3), "val": (1 / 3, 0.1 + 0.2, 0.3, 0.75), "test": (0.0, 1.0, 0.7)}
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-tautological-compare")
SAYS = 'function int said(int x) { print("said", x); return x; }\n'
CASES: dict[str, dict[str, str]] = {
    "plain integers": {"after": "print(-3, +4, -(5), - -6, 1 - 2, -9223372036854775807, -1 < 2);"},
    "integers as floats": {"before": "float x = - -5; print(x, 2.5 + - -3, -(7) * 0.5);"},
    "no float is finite": {
        "before": "float x = 1.0; float n = 0; for (int i = 0; i < 400; i++) { x *= 10; n = x - x; } "
        "print(x, -x, n);",
        "after": "float y = 1e308 * (10 + epoch); print(y, -y, y - y, -(y - y), y * 0, y - y < 1, y == y);",
    },
    "texts without characters": {"after": 'print("", 3); print("", "", 1); print(""); print("a", "", 2);'},
    "print beside a value": {"head": SAYS, "before": "int y = said(3); print(y);"},
    "print in a loop": {
        "head": SAYS,
        "before": "int y = 0; for (int i = 0; i < 3; i++) { y += said(i); } print(y);",
        "after": "if (said(2) > 1 && said(epoch) > 1) { print(said(1) - said(2), said(4) / (said(3) + 1)); }",
    },
    "names in functions alone": {
        "head": "function float half(float totalEpoch) { float epoch = totalEpoch; return epoch / 2; }\n",
        "rate": "0.1 / totalEpoch + 0 * half(totalEpoch)",
        "after": "print(totalEpoch / 2, half(epoch));",
    },
    "evaluations in turn": {
        "head": "function float less(float a, float b) { return a - b; }\n",
        "after": 'print(gnn.evaluate("val"), gnn.evaluate("test")); '
        'print(gnn.evaluate("val") / (gnn.evaluate("train") + 1), gnn.evaluate("test") - 1); '
        'print(less(gnn.evaluate("val"), gnn.evaluate("test")), gnn.loss()); '
        'if (gnn.evaluate("test") < gnn.evaluate("val") || gnn.evaluate("train") < 0.3) { print(epoch); }',
    },
    "print behind what may not run": {
        "head": SAYS + "function bool told(bool x) { print(x); return x; }\n",
        "after": "if (said(epoch) > 2 && said(1) > 0 || said(2) == 2 && said(epoch) == 1) { print(epoch); } "
        "print(told(epoch > 3) && told(true), told(false) || said(7 / (epoch + 1)) > told_to(1)); "
        "while (told(epoch > 3) && told(false) || told(epoch == 9)) { break; }".replace("told_to", "said"),
    },
    "print in conditions": {
        "head": SAYS,
        "after": "for (int i = said(0); said(i) + said(1) < 4; i += said(1) * said(1)) { "
        "if (i == 1) { continue; } if (said(i) > said(5)) { print(7); } "
        "else if (said(2) - said(i) == 0) { print(8); } "
        "else if (i > 9) { print(9); } else { print(10); } } "
        "int k = 3; while (said(k) > said(1) && said(k) > 0) { k--; } print(k);",
    },
    "an error behind a line": {"head": SAYS, "after": "print(said(1) + 7 / (epoch - 2), said(3));"},
    "an error before a line": {"head": SAYS, "after": "print(7 / (epoch - 2) + said(1));"},
    "evaluated twice an epoch": {
        "before": 'gnn.earlyStop("val", 3);',
        "after": 'gnn.evaluate("val"); if (gnn.evaluate("val") > 0.7) { print("good", epoch); }',
    },
    "what a branch changes": {
        "before": "bool known = totalEpoch > 3; int n = 1;",
        "after": "if (gnn.loss() > 2) { known = false; n = 2; } else if (epoch % 2 == 1) { "
        "for (int i = 0; i < 3; i++) { if (known) { n += i; } } } else { if (known) { n = 7; } } "
        "print(n, known);",
    },
    "what may never run": {"before": "int n = 0;", "after": "if (epoch > 9 && n != 0) { print(10 / n); }"},
    "what must not run": {"after": "if (epoch == 3) { int n = 1 / 0; print(n); }"},
    "nearly equal": {
        "before": "float best = 9;",
        "after": "if (gnn.loss() < best) { best = gnn.loss(); print(best, best == 0.3, best - 0.3); } "
        "for (float x = 0; x < 1; x += 0.1) { if (x * 10 == 3 || x == 0.3) { break; } print(x); }",
    },
    "loops in loops": {
        "after": "int k = 9; for (int i = 0; i < 5; i++) { if (i == 1) { continue; } for (;;) { k--; "
        "while (true) { if (k % 2 == 0) { break; } k -= i + 1; if (k < 0) { break; } } "
        "if (k < i) { break; } } "
        "print(i, k, k / 2, k % 2); if (i == 3) { break; } }",
    },
    "a loop without training that goes on": {
        "head": "function bool off(bool up) { for (int i = 0; i < 3; i++) { up = !up; } return up; }\n",
        "before": "int count_round = 0;",
        "after": "count_round++; bool up = epoch > 2; print(count_round, off(up)); "
        "while (up || epoch > 2) { up = !up; }",
    },
    "a loop that asks for the same loss again": {
        "after": "float k = gnn.loss(); while (k < 1.5) { k = gnn.loss(); }"
    },
    "loops without training that end": {
        "after": "int k = 0; for (int i = 0; i < 30; i++) { for (int j = 0; j < epoch; j++) { k++; } } "
        "print(k);",
    },
    "compared with itself": {"after": "bool b = epoch > 2; print(b == b, b != b, epoch == epoch);"},
    "a zero behind a line's end": {"after": "int x = 7 %\n(epoch - 2); float y = 2.5 /\n(x - 1);"},
    "products that do not fit": {"after": "int x = 2305843009213693952; x *= epoch + 1; print(x, -x - 1);"},
    "sums that do not fit": {
        "head": "function int more(int x) {\nx++;\nreturn x; }\n",
        "before": "int x = 9223372036854775805; int k = 0; int m = -9; bool plus = true;",
        "after": "k++; m--; m %= 7;\nx += k - epoch; print(plus, more(x - 2), x, m + 2 * k);",
    },
    "differences that do not fit": {
        "after": "int x = epoch - 9223372036854775800;\nfor (int i = x; i < 0; --i) "
        "{ if (i > x) { x = i; } x--; }"
    },
    "a loop that must not run": {
        "after": "if (epoch > 9) { int z = 0; for (int i = 0; i < 2; i++) { z = 1 / z; } print(z); }"
    },
    "a sum that does not fit before a line": {
        "head": SAYS,
        "before": "int x = 4611686018427387904; int times = 2;",
        "after": "print(x * (epoch - 1) + said(1), said(times) - x * -epoch);",
    },
}


def made(name: str, epochs: int) -> Synthesis:
    case = {"head": "", "before": "", "after": "", "rate": "0.1"} | CASES[name]
    text = (
        f"{case['head']}function T(Graph g, GNN gnn, container<int>& layers, String d) {{ gnn.load(g, d); "
        f'gnn.initializeLayers(layers, "xavier"); {case["before"]} '
        "for (int epoch = 0; epoch < totalEpoch; epoch++) { "
        'for (int l = 0; l < layers; l++) { gnn.forwardPass(l, "GCN"); } '
        "for (int l = layers - 1; l >= 0; l--) { gnn.backPropagation(l); } "
        f'gnn.optimizer("sgd", {case["rate"]}); {case["after"]} }} }}'
    )
    return from_program(parse_program(text), (4, 3, 2), {TOTAL_EPOCHS: epochs})


class Given:
    """A host with given losses and accuracies, which writes down what happens."""

    def __init__(self, recipe: Recipe) -> None:
        self.stop, self.lines, self.num_forward = recipe.early_stop, list[str](), 0
        self.accuracies: list[dict[str, float]] = []

    def train(self, step: Train, rate: float) -> None:
        self.num_forward += step.what == "forward"
        if step.what == "update":
            self.lines.append(f"update {rate:.17g}")
            self.accuracies.append({})

    def call(self, call: Call, arguments: tuple[Any, ...]) -> float:
        if call.method.name == "loss":
            return LOSSES[(self.num_forward - 1) % len(LOSSES)]
        split, epoch = split_of(call), len(self.accuracies) - 1
        found = ACCURACIES[split][epoch % len(ACCURACIES[split])]
        self.accuracies[-1][split] = found
        self.lines.append(f"epoch {epoch} {split} {found:.6f}")
        if self.stop is not None and self.stop.split == split and is_over(self.stop, self.accuracies):
            raise _StoppedEarly
        return found

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter counts as programs in C++ do, to a lower limit that it reaches sooner."""
    assert f"kMostRounds = {MOST_ROUNDS:_};".replace("_", "'") in (RUNTIME / "numbers.h").read_text()
    monkeypatch.setattr("graphbraid.synth.running.MOST_ROUNDS", 1000)


def interpreted(synthesis: Synthesis) -> list[str]:
    script, host = synthesis.recipe.steps, Given(synthesis.recipe)
    values = {**script.values, TOTAL_EPOCHS: synthesis.recipe.epochs}
    try:
        Interpreter(host, script.helpers, values, limit=None).block(script.statements)
    except _StoppedEarly:
        return [*host.lines, "= stopped"]
    except ProgramError as error:
        assert error.place is not None
        hint = f": {error.hint}" if error.hint else ""
        return [
            *host.lines,
            f"= line {error.place.line}: {error.message}{hint}".replace("after 1,000 ", "after 1,000,000 "),
        ]
    return [*host.lines, "= end"]


def _table(values: tuple[float, ...], at: str) -> str:
    return f"{{ const double v[] = {{{', '.join(map(repr, values))}}}; return v[({at}) % {len(values)}]; }}"


def in_cpp(programs: list[Synthesis]) -> str:
    splits = "".join(
        f"if (&rows == &split_{name}) {_table(values, 'epoch')} " for name, values in ACCURACIES.items()
    )
    lines = [
        '#include "following.h"\nnamespace program {\nstruct Program {',
        "LabelledRows split_train, split_val, split_test; int64_t at = -1, epoch = -1;",
        "void forward() { ++at; } void backward() {} void predict() {}",
        'void update(double rate) { ++epoch; std::printf("update %.17g\\n", rate); }',
        f"double loss() {_table(LOSSES, 'at')}",
        f"double accuracy(const LabelledRows& rows) {{ {splits}return 0; }} }};",
    ]
    calls = []
    for number, synthesis in enumerate(programs):
        script, stop = script_lines(synthesis.recipe.steps), synthesis.recipe.early_stop
        helpers = [line for helper in script["helpers"] for line in helper]  # type: ignore[attr-defined]
        lines += [f"namespace p{number} {{ namespace script {{", *helpers, "}"]
        lines += [
            f"void follow(Training<Program>& {script['gnn']}, [[maybe_unused]] Int {script['total']}) {{"
        ]
        lines += [*script["lines"], "} }"]  # type: ignore[misc]
        given = "" if stop is None else f', {{"{stop.split}", {stop.patience}}}'
        calls += [
            f"try {{ Program rows; Training<Program> training(rows{given});",
            f'p{number}::follow(training, {synthesis.recipe.epochs}); std::puts("= end"); }}',
            'catch (const StoppedEarly&) { std::puts("= stopped"); }',
            'catch (const std::exception& error) { std::printf("= %s\\n", error.what()); }',
        ]
    return "\n".join([*lines, "}\nint main() { using namespace program;", *calls, "}\n"])


def test_statements_run_in_cpp_as_they_are_interpreted(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    programs = [made(name, 8) for name in CASES]
    source = tmp_path / "programs.cpp"
    source.write_text(in_cpp(programs), encoding="utf-8")
    command = ["g++", "-std=c++20", "-O1", *WARNINGS, f"-I{RUNTIME}", f"-I{CSRC}"]
    command += [str(source), str(RUNTIME / "epochs.cpp"), "-o", str(tmp_path / "all")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = subprocess.run([str(tmp_path / "all")], capture_output=True, text=True, timeout=PATIENCE).stdout
    lines = [line for line in said.splitlines() if not re.match(r"epoch \d+ loss", line)]
    found: list[list[str]] = [[]]
    for line in lines:
        found[-1].append(line)
        if line.startswith("= "):
            found.append([])
    assert dict(zip(CASES, found, strict=False)) == {
        name: interpreted(one) for name, one in zip(CASES, programs, strict=True)
    }


@pytest.mark.parametrize("name", CASES)
def test_another_number_of_epochs_is_as_if_it_had_been_given(name):
    """What does not depend on ``totalEpoch`` is settled before training, and nothing else."""
    few, many = made(name, 2), made(name, 7)
    assert interpreted(replace(few, recipe=replace(few.recipe, epochs=7))) == interpreted(many)


def test_functions_that_call_each_other_too_deeply_are_refused():
    head = "function int f0(int x) { return x; } " + "".join(
        f"function int f{at}(int x) {{ return f{at - 1}(x) + 1; }} " for at in range(1, 400)
    )
    CASES["deep"] = {"head": head, "after": "print(f399(epoch));"}
    try:
        assert interpreted(made("deep", 1))[-1].endswith("functions call each other too deeply")
    finally:
        del CASES["deep"]
