"""Wrong programs: each with its exact error, by line, column, message and hint."""

import random
import string
import time

import pytest
from tests.synth.programs import LISTING, program

from graphbraid.errors import ConfigError, DataError
from graphbraid.synth import ProgramError, from_program, parse_program, read_program

HEAD = "function A(Graph g, GNN gnn, container<int>& n, String d) {\n"
START = 'gnn.load(g, d); gnn.initializeLayers(n, "xavier");\n'
PASSES = (
    'gnn.forwardPass(0, "GCN"); gnn.forwardPass(1, "GCN"); gnn.backPropagation(1); gnn.backPropagation(0);'
)
TURNED = (
    "while (gnn.loss() > 1) { gnn.backPropagation(1); gnn.backPropagation(0); "
    'gnn.optimizer("sgd", 0.1); if (gnn.loss() > 2) { break; } '
    'gnn.forwardPass(0, "GCN"); gnn.forwardPass(1, "GCN"); } '
)
STUCK = (
    "the loop never ends once it begins: "
    "nothing in it changes its condition; train in it, or leave it by break"
)
TWICE = "function int twice(int x) { return 2 * x; }\n"
KNOWN = "values that describe the layers must be known before training"
FINITE = "it is a finite number of at least 0"
LONG = "known are totalEpoch, g, gnn, n, d"
OF_LAYER = "only own layers have rows of nodes: a function with propNode<float> parameters is one"
LAYERS = (8, 16, 4)


def body(text: str) -> str:
    """A program of some statements, which begin on its second line."""
    return HEAD + text + "\n}"


OWN = "function Own(Graph g, propNode<float> x, propNode<float> out) {"
EACH, NEAR = "forall (v in g.nodes()) {", "forall (u in g.neighbors(v)) {"
SHAPE = "as in forall (v in g.nodes()) { forall (u in g.neighbors(v)) { v.out += u.x; } }"
REDUCED = "write v.out += ...; or v.out = Max(v.out, ...);"


def layer(message: str, behind: str = "", use: str = "") -> str:
    """A program with an own layer, whose message begins on the fourth line."""
    return f"{OWN}\n{EACH}\n{NEAR}\n{message}\n}}\n{behind}\n}} }}\n" + body(use)


SUMS = "".join(f"float {name} = u.x{' + u.x' * 48};\n" for name in "abc")
"""Three statements of 97 steps each."""

WRONG = [
    ("", '1:1: the program is empty: it begins with "function"'),
    ("fucntion A() {}", '1:1: unexpected "fucntion": did you mean function?'),
    ("function A(itn x) {}", '1:12: unknown type "itn": did you mean int?'),
    (
        "function A(Graph g, GNN gnn) {} x",
        '1:33: unexpected "x" after the function: a program is made of functions',
    ),
    (body("int x = 3 + ;"), '2:13: unexpected ";": a value is missing'),
    (body("int x = 3"), '3:1: unexpected "}": ";" is missing'),
    (HEAD + "int x = 3;", '1:59: "{" is never closed'),
    (body("int x = (3;"), '2:9: "(" is never closed'),
    (body("else { }"), '2:1: unexpected "else": a statement is missing'),
    (body("if (true) gnn.seed(1);"), '2:11: unexpected "gnn": "{" is missing'),
    (body("print('a');"), '2:7: unexpected character "\'": a text is written "..."'),
    (
        body("int x = 1 ^ 2;"),
        "2:11: unexpected character '^': operators are + - * / % ! && || and comparisons",
    ),
    ("#include <x>", "1:1: unexpected character '#': a comment begins with //"),
    (
        body("int ä = 3;"),
        "2:5: unexpected character 'ä': names have the letters A to Z and a to z, digits and _",
    ),
    (body("bool b = true and false;"), '2:15: unexpected "and": it is written "&&"'),
    (body("bool b = true & false;"), '2:15: unexpected "&": it is written "&&"'),
    (body("bool b = not true;"), '2:10: unexpected "not": it is written "!"'),
    (body("unsigned int x = 3;"), '2:1: unknown type "unsigned": variables are int, float, bool'),
    (
        body("load(g, d);"),
        '2:1: the call "load(" is no statement: a value is used, as in x = f(...); a method has its object, '
        "as in gnn.load(...)",
    ),
    ("function void f() { }", '1:10: unknown type "void": functions give int, float, bool'),
    ("function (Graph g) { }", '1:10: unexpected "(": a name is missing'),
    (
        "function f(int x) { return 1; }\n" + body(""),
        '1:1: the function "f" trains nothing: one that gives a value has its type, as in function '
        "int f(...)",
    ),
    (body("int totalEpoch = 3;"), '2:5: "totalEpoch" is declared already, in every program: rename one'),
    (
        "function A(Graph g, GNN gnn, float totalEpoch) {}",
        '1:36: "totalEpoch" is declared already, in every program: rename one',
    ),
    (body("int x = 3 @ 2;"), "2:11: unexpected character '@'"),
    (body("int x = true ? 1 : 2;"), "2:14: unexpected character '?': write if (...) { ... } else { ... }"),
    (body("switch (3) {case 1: }"), "2:19: unexpected character ':': write if (...) { ... } else { ... }"),
    (body("do { } while (true);"), '2:1: unknown word "do": write while (...) { ... }'),
    (body('gnn.evaluate("val);'), "2:14: a text is never closed: it ends on its own line"),
    (body("/* never"), "2:1: a comment is never closed"),
    (
        "function A(Graph g, GNN gnn, container<float> n) {}",
        "1:40: a container of float: containers hold int",
    ),
    (body("int x = 99999999999999999999;"), "2:9: the integer is too large: at most 9223372036854775807"),
    (body("int x = " + "(" * 60 + "1" + ")" * 60 + ";"), "2:58: brackets are nested more than 50 deep"),
    (body("int x = 1" + " + 1" * 200 + ";"), "2:403: a statement of more than 200 words: divide it"),
    (body("x = 3;"), '2:1: unknown name "x": known are totalEpoch, g, gnn, n, d'),
    (body("int x = totalEpok;"), '2:9: unknown name "totalEpok": did you mean totalEpoch?'),
    (body("int x = 1; int x = 2;"), '2:16: "x" is declared already, at line 2: rename one'),
    (
        body("for (int i = 0; i < 3; i++) { for (int i = 0; i < 2; i++) { } }"),
        '2:40: "i" is declared already, at line 2: rename one',
    ),
    (body("totalEpoch = 3;"), '2:1: "totalEpoch" cannot be changed: declare a variable of its own'),
    (body("int x = 1.5;"), "2:9: int is needed here; this is float"),
    (body("bool b = 1;"), "2:10: bool is needed here; this is int"),
    (body("Graph h = g;"), "2:1: a variable of type Graph: variables are int, float, bool"),
    (body("if (3) { }"), "2:5: a condition must be bool; this is int: compare it"),
    (body("int x = 5 % 2.0;"), '2:11: "%" between int and float: it joins two int'),
    (body("bool b = true + 1;"), '2:15: "+" between bool and int: it joins int and float'),
    (body("bool b = !3;"), '2:10: "!" of int: it takes bool'),
    (body("int x = d[0];"), '2:9: "d" is String, not a container'),
    (body("int x = n[1.0];"), "2:11: an index must be int; this is float"),
    (body("break;"), '2:1: "break" outside of a loop: write it in the block of a loop'),
    (
        "function A(GNN gnn) {}",
        '1:1: "A" has no Graph parameter: it begins as function Name(Graph g, GNN gnn, ...)',
    ),
    (
        "function A(Graph g, GNN gnn, Graph h) {}",
        '1:36: a second Graph parameter, after "g": a program has one',
    ),
    (body('gnn.forwardPas(0, "GCN");'), '2:5: unknown method "forwardPas" of GNN: did you mean forwardPass?'),
    (body("g.load();"), '2:1: "g" is Graph, which has no methods'),
    (body("gnn.getLayers();"), "2:5: the value of getLayers is not used"),
    (body("int x = gnn.seed(1);"), "2:13: seed gives no value: call it in a statement of its own"),
    (body("gnn.backPropagation();"), "2:5: backPropagation takes 1 argument; 0 given: they are layer"),
    (body('gnn.forwardPass(0, "SAGE", "Meen");'), '2:28: unknown aggregation "Meen": did you mean Mean?'),
    (body('gnn.forwardPass(0, "GCNN");'), '2:20: unknown model "GCNN": did you mean GCN?'),
    (body('gnn.forwardPass(0, "GIN", "Max");'), '2:27: GIN has no aggregation "Max": it has Sum'),
    (body("gnn.forwardPass(0, d);"), '2:20: the model must be written here as a text: as in "GCN"'),
    (
        body('gnn.initializeLayers(n, "xavierr");'),
        '2:25: unknown initialiser "xavierr": did you mean xavier?',
    ),
    (body('gnn.optimizer("adan", 0.1);'), '2:15: unknown optimizer "adan": did you mean adam?'),
    (
        body('gnn.activation(0, "tanh");'),
        '2:19: unknown activation "tanh": known are relu, elu, leaky_relu, none',
    ),
    (body('gnn.evaluate("valid");'), '2:14: unknown split "valid": did you mean val?'),
    (body("gnn.dropout(0, true);"), "2:16: the probability must be float; this is bool"),
    (body("gnn.seed(1);"), "2:5: seed before initializeLayers: initialise the layers first"),
    (body('gnn.initializeLayers(n, "xavier");'), "2:5: initializeLayers before load: load the graph first"),
    (body("gnn.load(g, d); gnn.load(g, d);"), "2:21: load is called twice: take one out"),
    (body(START), "1:1: the program trains nothing: call forwardPass, backPropagation, optimizer"),
    (
        body(START + 'gnn.forwardPass(1, "GCN");'),
        "3:17: forwardPass of layer 1; layer 0 is next: layers are run in order",
    ),
    (body(START + 'gnn.forwardPass(5, "GCN");'), "3:17: there is no layer 5: there are 0 to 1"),
    (
        body(
            START
            + PASSES
            + 'gnn.optimizer("sgd", 0.1);'
            + PASSES.replace('gnn.forwardPass(1, "GCN")', 'gnn.forwardPass(1, "SAGE")')
            + 'gnn.optimizer("sgd", 0.1);'
        ),
        "3:234: the model changes between epochs: each must be the same",
    ),
    (
        body(START + 'gnn.forwardPass(0, "GCN"); gnn.backPropagation(1);'),
        "3:32: backPropagation after 1 of 2 forward passes: call forwardPass of every layer first",
    ),
    (
        body(START + 'gnn.forwardPass(0, "GCN"); gnn.forwardPass(1, "GCN"); gnn.backPropagation(0);'),
        "3:75: backPropagation of layer 0; layer 1 is next: the last layer comes first",
    ),
    (
        body(START + 'gnn.forwardPass(0, "GCN"); gnn.forwardPass(1, "GCN"); gnn.optimizer("sgd", 0.1);'),
        "3:59: optimizer after 0 of 2 backward passes: call backPropagation of every layer first",
    ),
    (
        body(START + 'gnn.forwardPass(0, "GCN");'),
        "3:5: the program ends in the middle of an epoch: call the optimizer",
    ),
    (
        program(after_layer="gnn.dropout(l, 0.5);"),
        "8:19: dropout after the last layer: its rows are the result",
    ),
    (
        program(after_layer='gnn.normalization(0, "batches");'),
        '8:28: unknown normalization "batches": did you mean batch?',
    ),
    (program(before="gnn.seed(-1);"), "4:12: seed of -1: 0 to 4294967295 are possible"),
    (program(before="gnn.seed(1); gnn.seed(2);"), "4:20: seed is called twice: take one out"),
    (
        program(after_layer="if (l == 0) { gnn.dropout(l, 1.0); }"),
        "8:36: a dropout of 1: it is at least 0 and below 1",
    ),
    (
        program(optimizer='"sgd", 0.1, 0.9, 0.1, 3.0'),
        "13:41: sgd takes 3 numbers: they are learning rate, momentum, weight decay",
    ),
    (program(optimizer='"adam", 0.1, 1.0'), "13:32: a beta1 of 1: it is at least 0 and below 1"),
    (
        program(after_epoch="if (epoch == 3) { gnn.seed(1); }"),
        "14:27: seed after training has begun: call it before",
    ),
    (
        program(before='gnn.earlyStop("val", 3);'),
        '1:1: earlyStop looks at "val", which is never evaluated: call evaluate("val") in each epoch',
    ),
    (
        program(before="gnn.heads(3);", model="GAT"),
        "7:26: 16 columns cannot be shared by 3 heads: take a multiple of 3",
    ),
    (
        program(after_epoch="").replace('"adam", 0.01', "epoch > 3, 0.01"),
        '13:25: the optimizer must be written here as a text: as in "sgd"',
    ),
    (
        body(START + PASSES + 'gnn.optimizer("sgd", 0.1);' + PASSES + 'gnn.optimizer("adam", 0.1);'),
        "3:233: the optimizer changes between epochs: only its learning rate may change",
    ),
    (
        program(after_layer="if (l == 0 && epoch > 5) { gnn.dropout(l, 0.5); }"),
        f'8:21: "epoch" is known only while the program trains: {KNOWN}',
    ),
    (body(START + "for (;;) { }"), "3:1: the loop has run 1,000,000 statements and goes on: does it end?"),
    (body(START + "int x = 1 / (2 - 2);"), "3:11: division by zero"),
    (
        body(START + "int x = 1; for (int i = 0; i < 99; i++) { x *= 3; }"),
        "3:43: the integer is too large: at most 9223372036854775807",
    ),
    (program("SAGE", before="gnn.heads(4);"), "4:7: SAGE has no heads: take heads out, or use GAT or GATv2"),
    (
        body('if (d == "cora") { gnn.seed(1); }'),
        '2:7: "==" between String and String: it joins int and float, or two bool',
    ),
    (
        body("if (g == g) { gnn.seed(1); }"),
        '2:7: "==" between Graph and Graph: it joins int and float, or two bool',
    ),
    (
        body('gnn.load(g, "another");'),
        "2:13: the dataset is an argument of the program: write the name of the String parameter",
    ),
    (body(START + "int x = n[7];"), '3:9: "n" has no entry 7: it has 0 to 2'),
    (
        body('gnn.load(g, d); gnn.initializeLayers(n, "xavier"); gnn.evaluate("val");'),
        "2:56: evaluate in the middle of an epoch: call it after the optimizer",
    ),
    (body("if (totalEpoch = 3) { }"), '2:16: unexpected "=": a comparison is written "=="'),
    ("while (true) { }", '1:1: unexpected "while": "function" is missing'),
    (body("int x = while;"), '2:9: unexpected "while": a value is missing'),
    (body("whlie (true) { }"), '2:1: unknown word "whlie": did you mean while?'),
    (body("flaot x = 3;"), '2:1: unknown type "flaot": did you mean float?'),
    (
        "function A(Graph g, GNN gnn, tensor t) {}",
        '1:30: unknown type "tensor": known are int, float, bool, String, Graph, GNN, container, propNode',
    ),
    (body("float x = 1e999;"), "2:11: the number is too large: at most 1.797e308"),
    (program(optimizer='"sgd", 1e308 * 10.0'), f"13:32: a learning rate of inf: {FINITE}"),
    (program(optimizer='"sgd", -0.1'), f"13:26: a learning rate of -0.1: {FINITE}"),
    (
        program().replace("epoch < totalEpoch; epoch++", ";"),
        "5:3: the loop never ends: it has no condition, and no break leaves it",
    ),
    (
        program().replace("epoch < totalEpoch; epoch++", "true; epoch++"),
        "5:3: the loop never ends: nothing changes its condition, and no break leaves it",
    ),
    (
        program().replace("epoch++", ""),
        "5:3: the loop never ends: nothing changes its condition, and no break leaves it",
    ),
    (
        program().replace("epoch < totalEpoch; epoch++", "epoch >= 0; epoch++"),
        "5:3: the loop has more than 1,000,000 rounds: does it end?",
    ),
    (program(after_epoch="while (gnn.loss() > 1) { }"), f"14:5: {STUCK}"),
    (program(after_epoch="int k = 0; while (k < 3 && gnn.loss() > 1) { print(k); }"), f"14:16: {STUCK}"),
    (program(after_epoch="float k = gnn.loss(); while (k > 1) { print(k); }"), f"14:27: {STUCK}"),
    (
        program(before='gnn.earlyStop("val", 3);', after_epoch='while (true) { gnn.evaluate("val"); }'),
        "14:5: the loop never ends: nothing changes its condition, and no break leaves it",
    ),
    (
        program(before="float n = gnn.loss();"),
        "4:17: loss before the first forward pass: call it after that pass",
    ),
    (
        program(after_layer='gnn.evaluate("val");'),
        '8:7: "evaluate" runs only while the program trains: a loop over layers runs before training',
    ),
    (program(after_epoch="gnn.loss();"), "14:9: the value of loss is not used"),
    (
        program(after_epoch='if (gnn.loss() < 1) { gnn.forwardPass(0, "GCN"); }'),
        "14:20: a condition that is known only while the program trains changes the layers: every epoch "
        "runs them all alike",
    ),
    (
        body(
            START
            + PASSES.replace("gnn.backPropagation(1)", TURNED + "gnn.backPropagation(1)")
            + 'gnn.optimizer("sgd", 0.1);'
        ),
        "3:177: break after passes of an epoch that began before the loop: leave the loop before these "
        "passes, or begin the epoch in it",
    ),
    (
        program().replace('gnn.optimizer("adam", 0.01);', ""),
        "5:3: the loop ends in the middle of an epoch: call the optimizer in it",
    ),
    (
        program(optimizer='"sgd", 0.1, gnn.loss()'),
        '13:31: "loss" runs only while the program trains: a loop over layers runs before training',
    ),
    (
        program(after_layer="if (totalEpoch > 3 && l == 0) { gnn.dropout(l, 0.5); }"),
        f'8:11: "totalEpoch" is known only while the program trains: {KNOWN}',
    ),
    (body("print(d);"), "2:7: print of String: it prints texts, int, float, bool"),
    (body('print("a" "b");'), '2:11: unexpected ""b"": ";" is missing'),
    (body("return 3;"), "2:1: return in the function that trains: leave a loop with break"),
    (
        program(
            before='gnn.minimize("mean squared"); gnn.earlyStop("val", 3);',
            after_epoch='gnn.evaluate("val");',
        ),
        "4:37: earlyStop needs an accuracy; mean squared has none: compare the result of evaluate, and leave "
        "the loop by break",
    ),
    (
        program(before='gnn.minimize("hinge");'),
        '4:16: unknown loss "hinge": known are cross entropy, binary cross entropy, mean squared',
    ),
    (body("int x = twice(3);"), '2:9: unknown function "twice": the program has none'),
    (TWICE + body("int x = twise(3);"), '3:9: unknown function "twise": did you mean twice?'),
    (TWICE + body("int x = twice(3, 4);"), "3:9: twice takes 1 argument; 2 given: they are x"),
    (TWICE + body("int x = twice(0.5);"), "3:15: x must be int; this is float"),
    (TWICE + body("float twice = 1.0;"), '3:7: "twice" is the name of a function: rename one'),
    (TWICE + TWICE + body(""), '2:14: a second function "twice": rename one'),
    (
        "function int f(int x) { if (x > 0) { return 1; } }\n" + body(""),
        '1:14: "f" may end without a value: end it with return, in every branch',
    ),
    (
        "function int f(int x) { return f(x); }\n" + body(""),
        '1:32: "f" is not known yet: a function can call those above it, and not itself',
    ),
    (
        "function int f(int x) { return twice(x); }\n" + TWICE + body(""),
        '1:32: "twice" is not known yet: a function can call those above it, and not itself',
    ),
    (
        "function int f(int x) { while (true) { if (x > 2) { break; } return x; } }\n" + body(""),
        '1:14: "f" may end without a value: end it with return, in every branch',
    ),
    (
        "function int f(int x) { while (x > 2) { return x; } }\n" + body(""),
        '1:14: "f" may end without a value: end it with return, in every branch',
    ),
    (
        "function int f(GNN gnn) { return 1; }\n" + body(""),
        "1:20: GNN in the function f: a function that gives a value works with int, float, bool",
    ),
    ("function int f(int x) { return 1.5; }\n" + body(""), "1:32: the value must be int; this is float"),
    (
        "function int f(int x) { return totalEpoch; }\n" + body(""),
        '1:32: unknown name "totalEpoch": known are x',
    ),
    (
        "function int f(int x) { while (true) { for (;;) { break; } } return 1; }\n" + body(""),
        "1:25: the loop never ends: no break and no return leaves it",
    ),
    (
        "function int f(int x) { while (x > 5) { int y = x; y++; } return 1; }\n" + body(""),
        "1:25: the loop never ends once it begins: nothing in it changes its condition; leave it by "
        "break or return",
    ),
    (
        "function int f(int x) { return 1; }",
        "1:14: no function trains: one begins as function Name(Graph g, GNN gnn, ...)",
    ),
    (body("int " + "x" * 10_000 + " = 3;"), "2:5: a name of 10,000 characters: at most 100 are possible"),
    (body('print("' + "x" * 10_000 + '", y);'), f'2:10011: unknown name "y": {LONG}'),
    (
        body('gnn.evaluate("' + "x" * 10_000 + '");'),
        "2:14: " + 'unknown split "' + "x" * 100 + '"' + ": " + "known are train, val, test",
    ),
    (OWN + "}" + body(""), f"1:1: a layer is one forall over g.nodes(): {SHAPE}"),
    (OWN + "v.out = 1;}" + body(""), f"1:64: a layer is one forall over g.nodes(): {SHAPE}"),
    (OWN + EACH + "} }" + body(""), f"1:64: a layer is one forall over g.neighbors(v): {SHAPE}"),
    (
        OWN + EACH.replace("nodes", "edges") + "} }" + body(""),
        f"1:77: forall over something else than g.nodes(): {SHAPE}",
    ),
    (
        OWN + EACH + NEAR.replace("(v)", "(u)") + "} } }" + body(""),
        f"1:102: forall over something else than g.neighbors(v): {SHAPE}",
    ),
    (
        OWN + EACH + NEAR.replace("u in", "v in") + "} } }" + body(""),
        '1:97: "v" is declared already: rename one',
    ),
    (OWN.replace("> x", "> out") + "}" + body(""), '1:60: "out" is declared already: rename one'),
    (
        "function Own(Graph g, propNode<float> out) {}" + body(""),
        '1:1: the layer "Own" has too few properties: it needs one to read, and the last one is the result',
    ),
    (
        "function Own(Graph g, int a, propNode<float> out) {}" + body(""),
        "1:27: int in the layer Own: it begins as function Name(Graph g, propNode<float> x, ..., "
        "propNode<float> out)",
    ),
    ("function Own(propNode<int> out) {}" + body(""), "1:23: a property of int: properties hold float"),
    (OWN.replace("Own", "gat") + "}" + body(""), '1:1: "gat" is the name of a model: rename the function'),
    (layer("") + OWN + "}", "3:1: the block has no message: end it with v.out += ..."),
    (layer("int i = 1; v.out += u.x;"), "4:1: not a statement of a message: write float name = ...;"),
    (layer("float u = 1; v.out += u.x;"), '4:7: "u" is declared already: rename one'),
    (layer("u.out += u.x;"), "4:1: u.out is changed: only v.out is written"),
    (layer("v.x += u.x;"), "4:1: v.x is changed: only v.out is written"),
    (layer("v.out = Max(u.x, v.x);"), f"4:1: not a reduction of a message: {REDUCED}"),
    (layer("v.out = Man(v.out, u.x);"), '4:9: unknown reduction "Man": did you mean Mean?'),
    (layer("v.out += 1;"), "4:1: the message reads no property: as in u.x"),
    (layer("v.out += u.x * v.out;"), '4:18: the result "out" is read: messages have no fixed order'),
    (layer("v.out += u.y;"), '4:12: unknown property "y": known are x'),
    (layer("v.out += w.x;"), '4:10: unknown node "w": known are v, u'),
    (layer("v.out += m * u.x;"), '4:10: unknown name "m": known are v.x, u.x'),
    (
        layer("v.out += u.x * g.weight(v, u);"),
        "4:16: not a call of a message: the edge's weight is g.weight(u, v)",
    ),
    (layer("v.out += rleu(u.x);"), '4:10: unknown function "rleu": did you mean relu?'),
    (layer("v.out += relu(u.x, 1);"), "4:10: relu of 2 values: it takes one value"),
    (
        layer("v.out += leaky_relu(u.x, v.x);"),
        "4:10: leaky_relu of 2 values: a slope may follow, as a number",
    ),
    (
        layer("v.out += u.x > 0;"),
        "4:14: not a value of a message: a message has numbers, rows, + - * / and relu, "
        "leaky_relu, sigmoid, tanh, exp, abs",
    ),
    (layer(SUMS + "v.out += a + b + c;"), "7:1: a message of 293 steps: at most 256 are possible"),
    (layer("v.out += u.x;", "v.out += u.x;"), '6:10: unknown node "u": known are v'),
    (
        layer("v.out += u.x;", "v.out = v.x;"),
        "6:1: after the neighbours only own rows can be added: write v.out += v.x;",
    ),
    (
        OWN.replace("> x,", "> x, propNode<float> y,") + EACH + NEAR + "v.out += u.x; } } }" + body(""),
        '1:58: the property "y" is not read: take it out',
    ),
    (
        layer("v.out += u.x;") + "\n" + layer("v.out += u.x;"),
        "18:1: a second function that trains: a program has one",
    ),
    (
        layer("v.out += u.x;", use=START + 'gnn.forwardPass(0, "Onw");'),
        '10:20: unknown model "Onw": did you mean Own?',
    ),
    (
        layer("v.out += u.x;", use=START + 'gnn.forwardPass(0, "Own", "Sum");'),
        "10:27: an aggregation of the layer Own: its function says how messages are reduced",
    ),
    (body("forall (v in g.nodes()) { }"), f"2:1: {OF_LAYER}"),
    ("function int f(int x) { return x.y; }" + body(""), f"1:32: {OF_LAYER}"),
]


@pytest.mark.parametrize(("text", "says"), WRONG)
@pytest.mark.whole
def test_a_mistake_is_named_with_its_place(text, says):
    with pytest.raises(ProgramError) as raised:
        from_program(parse_program(text, source="wrong.gnn"), LAYERS)
    error = raised.value
    assert error.place is not None
    line, column = error.place.line, error.place.column
    assert f"{line}:{column}: {error.message}" + (f": {error.hint}" if error.hint else "") == says
    first, *shown = str(error).splitlines()
    assert first == f"wrong.gnn:{says}"
    if shown:
        whole = text.splitlines()[line - 1]
        part = shown[0].strip().removeprefix("...").removesuffix("...")
        assert part in whole and len(shown[0]) <= 108
        assert len(whole) > 100 or shown[0] == f"  {whole}"
        at = shown[1].index("^")
        assert at >= len(shown[0]) or shown[0][at] == whole[column - 1]


EPOCHS = "for (int epoch = 0; epoch < totalEpoch; epoch++)"


@pytest.mark.parametrize(
    ("loop", "place"),
    [
        ("for (;;)", "5:3"),
        ("while (true)", "5:3"),
        ("while (totalEpoch > 0)", "5:3"),
        ("for (int epoch = 0; epoch < totalEpoch;)", "5:3"),
        ("for (int epoch = 0; epoch < totalEpoch; epoch--)", "5:3"),
        ("for (int epoch = 0; epoch >= 0; epoch++)", "5:3"),
        ("for (float x = 1.0; x > 0; x *= 1.5)", "5:3"),
        ("int k = 0; while (k < 5)", "5:14"),
        pytest.param("int k = 0; while (k < 3) { k = 1; k = 2; } " + EPOCHS, "5:37", marks=pytest.mark.slow),
    ],
)
def test_an_endless_outer_loop_is_blamed_on_its_line_within_5_seconds(loop, place):
    began = time.process_time()  # of this process alone: others do not count
    with pytest.raises(ProgramError, match=f"wrong.gnn:{place}: the (loop|program) .*(never ends|end[?])"):
        from_program(parse_program(program().replace(EPOCHS, loop), source="wrong.gnn"), LAYERS)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "loop",
    [
        "while (gnn.loss() > 1) { if (gnn.loss() > 0) { break; } }",
        "for (int i = 0; i < 3 && gnn.loss() > 1; i++) { print(i); }",
        "float k = gnn.loss(); while (k > 1) { k /= 2; }",
        "while (false) { print(1); }",
        "int k = 9; while (k < 3) { print(k); }",
    ],
)
def test_loops_that_may_end_are_taken(loop):
    assert from_program(parse_program(program(after_epoch=loop)), LAYERS).recipe.script is not None


@pytest.mark.parametrize("asked", ["gnn.loss() > 1", 'gnn.evaluate("val") < 0.9'])
def test_a_loop_that_trains_may_ask_what_training_gives(asked):
    epochs = program()[program().index(EPOCHS) : -2]
    text = program(before=epochs).replace(EPOCHS, f"while ({asked})").replace(f"while ({asked})", EPOCHS, 1)
    assert from_program(parse_program(text), LAYERS).recipe.script is not None


def test_a_loops_condition_may_ask_for_a_loss_behind_what_holds_at_first():
    text = program(before="int epoch = 0;", after_epoch="epoch++;")
    asked = text.replace(EPOCHS, "while (epoch == 0 || gnn.loss() > 1)")
    assert from_program(parse_program(asked), LAYERS).recipe.script is not None
    with pytest.raises(ProgramError, match="5:14: loss before the first forward pass"):
        from_program(parse_program(text.replace(EPOCHS, "while (gnn.loss() > 1 || epoch == 0)")), LAYERS)


def test_there_are_enough():
    assert len({says.split(": ", 1)[1] for _, says in WRONG}) >= 100


@pytest.mark.parametrize(
    ("layers", "settings", "message"),
    [
        ((8,), {}, "1 widths"),
        ((8, 0, 4), {}, "a layer of 0 columns"),
        (LAYERS, {"epochs": 3}, 'the program has no setting "epochs"'),
        (LAYERS, {"totalEpoch": 1.5}, 'the setting "totalEpoch" must be int; got 1.5'),
        (LAYERS, {"totalEpoch": 0}, "the program trains nothing"),
    ],
)
def test_what_is_given_is_checked(layers, settings, message):
    with pytest.raises(ProgramError) as raised:
        from_program(parse_program(program()), layers, settings)
    assert raised.value.message == message


def test_a_parameter_needs_a_value():
    text = program().replace("String dataset", "String dataset, float rate")
    with pytest.raises(ProgramError, match='"rate" has no value: give it as a setting'):
        from_program(parse_program(text), LAYERS)
    assert from_program(parse_program(text), LAYERS, {"rate": 1}).recipe.epochs == 200


def test_the_line_that_an_error_shows_is_the_one_it_names():
    """Other characters than a line feed end lines for Python, and not for the parser."""
    for mark in ("\u2028", "\x0c", "\x85"):
        with pytest.raises(ProgramError) as raised:
            parse_program(f"{HEAD[:-1]} // {mark}\r\nint x = 1.5;\r\n}}")
        assert str(raised.value).splitlines()[-2:] == ["  int x = 1.5;", "          ^"]


def test_files_of_windows_are_read(tmp_path):
    (tmp_path / "a.gnn").write_bytes(b"\xef\xbb\xbf" + LISTING.replace("\n", "\r\n").encode())
    assert read_program(tmp_path / "a.gnn").text == LISTING


def test_files_that_are_no_programs(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the program .*: No such file"):
        read_program(tmp_path / "none.gnn")
    (tmp_path / "binary.gnn").write_bytes(b"function \xff")
    with pytest.raises(DataError, match="is not text in UTF-8: byte 9"):
        read_program(tmp_path / "binary.gnn")
    (tmp_path / "wrong.gnn").write_text("function")
    with pytest.raises(ConfigError, match=r"wrong.gnn:1:1: the text ends after"):
        read_program(tmp_path / "wrong.gnn")


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_brings_another_error(seed):
    numbers, refused = random.Random(seed), 0
    for _ in range(60):
        text = list(numbers.choice([LISTING, program("GAT", "Sum", after_epoch='gnn.evaluate("val");')]))
        for _ in range(numbers.randrange(1, 6)):
            at = numbers.randrange(len(text))
            text[at : at + numbers.randrange(4)] = numbers.choices(string.printable, k=numbers.randrange(4))
        try:
            from_program(parse_program("".join(text)), LAYERS)
        except ProgramError as error:
            assert str(error)
            refused += 1
    assert refused > 30
