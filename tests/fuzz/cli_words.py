"""The words that command lines are put together from."""

WHOLE = (
    *("-1", "0", "1", "2", "3", "5", "7", "63", "1000", "99999", "100000", "2147483647", "2147483648"),
    *("4294967296", "4611686018427387904", "9223372036854775807", "9223372036854775808"),
    *("1000000000000000000000000000000", "-9223372036854775808", "010", "+3", "1_000", "-0"),
)
"""Whole numbers, some as no option should take them."""
REAL = (
    *("0", "-0.0", "0.5", "1", "1.5", "-1", "nan", "inf", "-inf", "1e308", "1e39", "1e-320"),
    *("0.999999999999", "1_0.5"),
)
NUMBERS = (
    *("-1", "0", "1", "2", "3", "7", "1.5", "-0.5", "nan", "inf", "-inf", "1e308", "1e-320"),
    *("2147483648", "4294967296", "9223372036854775808", "1000000000000000000000000000000", "", "x"),
    *("1,2", "0x10", "010", "1_0", "1e3", "٣", "true", "null"),
)
"""Numbers of every writing."""
TEXTS = (
    *("", " ", "nope", "[bold]x[/]", "[/]", "a\nb", "🙂", "%s", "{}", "-", "--", "None", "null"),
    *("x" * 3000, "é", "\x1b[31m", "adam", "sgd", "lbfgs", "sparseadam", "cosine", "plateau"),
    *("sampled", "exact", "full", "auto", "cpu", "gpu", "cpu:1", "meta", "cuda", "cuda:7", "blocks"),
    *("subgraph", "bfloat16", "float16", "gat", "gcn", "gin", "mlp", "sage", "gatv2", "best", "last"),
    *("train", "val", "test", "braid-10k", "label", "w", "a", "a,b", ",", "a,,b", ";", "\\t", "||"),
)
PATHS = (
    *("", ".", "..", "/", "missing", "missing/deep/x.csv", "in", "in/data", "in/g.npz", "in/run"),
    *("in/run.yaml", "in/edges.csv", "in/ids.txt", "user", "user/config.json", "user/new"),
    *("in/[bold].npz", "[/]", "~", "~nobody/x", "x" * 300, "a\nb", "/dev/full", "/dev/null", "/proc/x"),
    *("in/edges.csv/x", "in/loop", "in/nowhere", "out", "out.csv", "out.npz", "out.parquet", "-", "🙂"),
    *(" ", "in/empty"),
)
YAML = (
    *("", "1", "-1", "0", "1.5", "nan", ".inf", "true", "yes", "010", "1:30", "null", "[]", "{}"),
    *("[1, 2]", "[1", "{a: 1}", "{heads: 2}", "{in_channels: 3}", "{verify: 1}", "{mmap: 3}", "text"),
    *("'1'", "!!python/object:os.system x", "&a [*a]", "1e400"),
    *("10000000000000000000000000000000000000000", "2024-01-01", "[bold]", "{hidden_channels: 4}"),
    *("{1: 2}", "[null]", "[[1]]", "auto", "[5, 5]", "[3.5, 1]"),
)
"""What may stand behind ``--set NAME=``."""
