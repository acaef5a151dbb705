"""The flags of a run's options on a command line, made from the fields of their records."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

from graphbraid.cli.common import flag, path_flag
from graphbraid.cli.run.settings import GivenOptions, RunSettings
from graphbraid.train.config import RUN, TrainConfig
from graphbraid.train.option_values import Flag

P = ParamSpec("P")


def with_flags(
    *, only: Collection[str] | None = None, but: Collection[str] = (), in_panels: bool = True
) -> Callable[[Callable[Concatenate[GivenOptions, P], None]], Callable[P, None]]:
    """Give a command the flags of a run's options, ``--config`` and ``--set``.

    The command gets what was given by them as its first argument; its own flags come after them in its help.

    Args:
        only: options that have a flag here. If None, all.
        but: options that have none here.
        in_panels: whether the help has a heading for each kind of options.
    """
    flags = {
        name: parameter
        for name, parameter in _flags(in_panels=in_panels)
        if name not in but and (only is None or name in only)
    }
    panel = RUN if in_panels else None
    config = path_flag(None, "--config -c", "Read options from this YAML file.", metavar="FILE", panel=panel)
    text = "Any other option of run.yaml, as often as needed."
    assignments = flag(None, "--set", text, metavar="OPTION=VALUE", panel=panel)
    shared = {
        "config": _parameter("config", Path | None, config),
        "assignments": _parameter("assignments", list[str] | None, assignments),
    }

    def decorate(command: Callable[Concatenate[GivenOptions, P], None]) -> Callable[P, None]:
        hints = typing.get_type_hints(inspect.unwrap(command), include_extras=True)
        of_command = list(inspect.signature(command).parameters.values())[1:]
        own = {one.name: one.replace(annotation=hints[one.name]) for one in of_command}

        @functools.wraps(command)
        def run(*_: P.args, **options: P.kwargs) -> None:
            values = {name: options[name] for name in flags if options.get(name) is not None}
            file: Any = options.get("config")
            given = GivenOptions(values, file, tuple(options.get("assignments") or ()))  # type: ignore[arg-type]
            command(given, **{name: options[name] for name in own if name in options})  # type: ignore[arg-type, call-arg]

        parameters = [shared["config"], *flags.values(), shared["assignments"], *own.values()]
        del run.__wrapped__  # typer would read its parameters
        run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _flags(*, in_panels: bool) -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield the parameter of each option that has a flag, by the option's name."""
    for kind in (RunSettings, TrainConfig):
        # Any class stands for the one that only PyTorch has: on a command line an optimizer is a name.
        hints = typing.get_type_hints(kind, localns={"Optimizer": object}, include_extras=True)
        for one in fields(kind):
            if (shown := one.metadata.get("flag")) is not None:
                names = shown.names or "--" + one.name.replace("_", "-")
                parsed, text = _type_of(hints[one.name]), _help(shown, one.default)
                declare = path_flag if parsed is Path else flag
                panel = shown.panel if in_panels else None
                declared = declare(None, names, text, metavar=shown.metavar, panel=panel)
                yield one.name, _parameter(one.name, parsed | None, declared)


def _parameter(name: str, annotation: Any, declared: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=annotation)


def _type_of(hint: Any) -> Any:
    """Return the type by which a command line parses an option; the record checks and converts it later."""
    kinds = set(_parts(hint)) - {types.NoneType}
    if bool in kinds or Path in kinds:
        return bool if bool in kinds else Path
    return kinds.pop() if kinds in ({int}, {float}) else str


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the types of a union, without the bounds that annotate them."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        yield from _parts(parts[0])
    elif origin in (typing.Union, types.UnionType):
        for part in parts:
            yield from _parts(part)
    else:
        yield hint


def _help(flag: Flag, default: Any) -> str:
    """Return the text of a flag with its default, unless that is none or the text tells it."""
    if default is None or default is False or "(default:" in flag.text:
        return flag.text
    if isinstance(default, tuple):
        shown = ",".join(map(str, default))
    else:
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{flag.text} (default: {shown})"
