"""The card's limits beside which figures stand, as advertised and as plain copies reach them, and goals."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

ADVERTISED: dict[str, dict[str, float]] = {
    "GH200": {"hbm": 4.0e12, "link": 450e9, "tensor": 989e12, "fp32": 67e12},  # 96 GB of HBM3; NVLink-C2C
    "H200": {"hbm": 4.8e12, "link": 64e9, "tensor": 989e12, "fp32": 67e12},
    "H100 80GB HBM3": {"hbm": 3.35e12, "link": 64e9, "tensor": 989e12, "fp32": 67e12},  # SXM
}
"""Part of the name that CUDA gives a card -> bytes a second of its memory and of its link to the host (one
way, PCIe 5.0 x16), and operations a second: dense bfloat16 on tensor cores, float32 beside them."""

Limits = dict[str, dict[str, float]]


def advertised(name: str) -> dict[str, float]:
    """What a card of this name is advertised to do; nothing for one that the table lacks."""
    return next((found for part, found in ADVERTISED.items() if part in name), {})


@lru_cache(maxsize=1)
def limits_of(place: torch.device) -> Limits:
    """The limits of a device: ``advertised``, and ``measured`` by plain copies and a product (a second)."""
    on_card = place.type == "cuda"
    count = 1 << (28 if on_card else 14)
    source, side = torch.empty(count, device=place), 8192 if on_card else 64
    target, host = torch.empty_like(source), torch.empty(count, pin_memory=on_card)
    factor = torch.ones(side, side, dtype=torch.bfloat16, device=place)
    measured = {
        "hbm": 2 * source.nbytes / timed(lambda: target.copy_(source), 5, place),
        "link": source.nbytes / timed(lambda: source.copy_(host, non_blocking=True), 5, place),
        "tensor": 2 * side**3 / timed(lambda: factor @ factor, 5, place),
    }
    return {
        "advertised": advertised(torch.cuda.get_device_name(place)) if on_card else {},
        "measured": measured,
    }


def timed(run: Callable[[], object], count: int, place: torch.device) -> float:
    """Seconds of one of ``count`` runs in a row, the device's work included; alone, it is not warmed up."""
    if count > 1:
        run()
    wait(place)
    started = time.perf_counter()
    for _ in range(count):
        run()
    wait(place)
    return (time.perf_counter() - started) / count


def wait(place: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def describe(limits: Limits) -> str:
    """One line: each limit as advertised, and as measured."""
    words = {"hbm": "memory", "link": "link", "tensor": "bfloat16 products"}
    parts = []
    for key, word in words.items():
        unit, scale = ("TFLOP/s", 1e12) if key == "tensor" else ("GB/s", 1e9)
        claim = limits["advertised"].get(key)
        said = f"{claim / scale:,.0f} advertised" if claim else "not advertised"
        parts.append(f"{word} {said}, {limits['measured'][key] / scale:,.1f} {unit} measured")
    return "limits: " + "; ".join(parts)


def share_of(rate: float, key: str, limits: Limits) -> float:
    """The share of a limit that a rate reaches: of the advertised one, or of the measured one without it."""
    return rate / (limits["advertised"].get(key) or limits["measured"][key])


def beside(rate: float, key: str, limits: Limits) -> str:
    """A rate in GB/s with its shares of both limits."""
    shares = [
        f"{rate / found[key]:.0%} {of}"
        for of, found in (("of advertised", limits["advertised"]), ("of a copy", limits["measured"]))
        if key in found
    ]
    return f"{rate / 1e9:,.1f} GB/s ({', '.join(shares)})"


def goals_of(*asked: tuple[str, float | None, float, bool]) -> dict[str, Any]:
    """Print each goal beside what was got, and return them for a row.

    Args:
        asked: what is meant, the figure (None: not measured), the goal, and whether more is better.
    """
    found = {}
    for name, got, goal, more in asked:
        met = None if got is None else (got >= goal if more else got <= goal)
        word = "not measured" if met is None else f"{got:.3g}, {'met' if met else 'missed'}"
        print(f"goal: {name}: {'at least' if more else 'at most'} {goal:g}: {word}", flush=True)
        found[name] = {"got": got, "goal": goal, "met": met}
    return found
