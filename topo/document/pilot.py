"""Pilot files in JSON: the prices that a job's own pilot found, and the measurements behind them."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any, Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr

from partreduce.topo.document.model import Listed, Model, Name, validate
from partreduce.topo.document.place import child, shown_path
from partreduce.topo.document.reader import read_json
from partreduce.topo.document.schedule import check_header
from partreduce.topo.document.writer import write_file
from partreduce.topo.errors import DocumentError
from partreduce.topo.fields import Count, Rounds
from partreduce.topo.pilot import Pilot, Price, Prices, Probe

FORMAT = "partreduce.pilot"
VERSION = 1

TOLD = ("averaging", "later")
"""Prices that stand there if there were enough probes to tell them from the others."""

DataKind = Literal["shuffled", "per-worker", "per-node"]
Figure = Annotated[StrictInt | StrictFloat, Field(ge=0, allow_inf_nan=False)]
Sha256 = Annotated[StrictStr, Field(pattern="^[0-9a-f]{64}$")]
StepsRatio = Annotated[StrictInt | StrictFloat, Field(gt=0, allow_inf_nan=False)]


class PriceModel(Model):
    """A price with its 90 % confidence interval."""

    value: Figure
    low: Figure
    high: Figure


class PricesModel(Model):
    """What one unit costs, in multiples of All-Reduce's steps; `drift` exactly where the data were not shuffled."""

    curved_distance: PriceModel
    late: PriceModel
    drift: PriceModel | None = None
    averaging: PriceModel | None = None
    later: PriceModel | None = None
    error: Figure


class ProbeModel(Model):
    """One schedule of the pilot and its steps over All-Reduce's, once per seed; `sha256` of what may be recommended."""

    schedule: Name
    consensus_distance: Figure
    curved_distance: Figure
    drift: Figure
    late: Figure
    steps_ratios: Annotated[Listed[StepsRatio], Field(min_length=2, max_length=1000)]
    sha256: Sha256 | None = None


class UnstableModel(Model):
    """A schedule of the pilot under which a loss did not fall or was no number; `design` leaves its class out."""

    schedule: Name
    consensus_distance: Figure
    curved_distance: Figure
    drift: Figure
    late: Figure
    sha256: Sha256 | None = None


class PilotModel(Model):
    """What a pilot of a job measured, and the prices of consensus distance, drift and lateness that explain it."""

    format: Literal["partreduce.pilot"] = "partreduce.pilot"
    version: Literal[1] = 1
    num_workers: Count
    data: DataKind
    steps: Count
    seeds: Annotated[Listed[Rounds], Field(min_length=2, max_length=1000)]
    prices: PricesModel
    probes: Annotated[Listed[ProbeModel], Field(min_length=2, max_length=1000)]
    unstable: Annotated[Listed[UnstableModel], Field(max_length=1000, default_factory=list)]


def load_pilot(path: str | os.PathLike[str]) -> Pilot:
    """Read a pilot file strictly.

    Raises:
        FileProblem: the file is absent or cannot be read.
        DocumentError: a file that breaks the format.
    """
    raw = read_json(path)
    try:
        return pilot_of(raw)
    except DocumentError as error:
        raise DocumentError(error.place, error.problem, shown_path(path)) from None


def pilot_of(raw: object) -> Pilot:
    """The pilot of a parsed document.

    Raises:
        DocumentError: a document that breaks the format.
    """
    check_header(raw, FORMAT, VERSION)
    model = validate(PilotModel, raw, "")
    if (model.prices.drift is None) != (model.data == "shuffled"):
        raise DocumentError(
            "prices.drift", f"is for data that differ, and exactly for these; the data are {model.data}"
        )
    for index, probe in enumerate(model.probes):
        if len(probe.steps_ratios) != len(model.seeds):
            place = child(child("probes", index), "steps_ratios")
            problem = f"has {len(probe.steps_ratios)} numbers for {len(model.seeds)} seeds; it has one for each"
            raise DocumentError(place, problem)
    prices = model.prices
    return Pilot(
        num_workers=model.num_workers,
        data=model.data,
        steps=model.steps,
        seeds=tuple(model.seeds),
        prices=Prices(
            curved_distance=_price(prices.curved_distance, "prices.curved_distance"),
            late=_price(prices.late, "prices.late"),
            **{name: _price_if_there(getattr(prices, name), f"prices.{name}") for name in ("drift", *TOLD)},
            error=float(prices.error),
        ),
        probes=tuple(_probe(probe, tuple(map(float, probe.steps_ratios))) for probe in model.probes),
        unstable=tuple(_probe(probe, ()) for probe in model.unstable),
    )


def _probe(model: ProbeModel | UnstableModel, steps_ratios: tuple[float, ...]) -> Probe:
    return Probe(
        schedule=model.schedule,
        consensus_distance=float(model.consensus_distance),
        curved_distance=float(model.curved_distance),
        drift=float(model.drift),
        late=float(model.late),
        steps_ratios=steps_ratios,
        sha256=model.sha256 or "",
    )


def _price_if_there(model: PriceModel | None, place: str) -> Price | None:
    return None if model is None else _price(model, place)


def _price(model: PriceModel, place: str) -> Price:
    if not model.low <= model.value <= model.high:
        raise DocumentError(place, f"is {model.value} in [{model.low}, {model.high}]; a price lies in its interval")
    return Price(float(model.value), float(model.low), float(model.high))


def dump_pilot(pilot: Pilot) -> dict[str, Any]:
    """The document of a pilot; `pilot_of` reads the same pilot back."""
    prices = pilot.prices
    named = {name: getattr(prices, name) for name in ("curved_distance", "late", "drift", *TOLD)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "num_workers": pilot.num_workers,
        "data": pilot.data,
        "steps": pilot.steps,
        "seeds": list(pilot.seeds),
        "prices": {
            **{
                name: {"value": price.value, "low": price.low, "high": price.high}
                for name, price in named.items()
                if price is not None
            },
            "error": prices.error,
        },
        "probes": [_figures_of(probe) | {"steps_ratios": list(probe.steps_ratios)} for probe in pilot.probes],
        **({"unstable": [_figures_of(probe) for probe in pilot.unstable]} if pilot.unstable else {}),
    }


def _figures_of(probe: Probe) -> dict[str, Any]:
    names = ("schedule", "consensus_distance", "curved_distance", "drift", "late")
    figures = {name: getattr(probe, name) for name in names}
    return figures | ({"sha256": probe.sha256} if probe.sha256 else {})


def write_pilot(path: str | os.PathLike[str], pilot: Pilot) -> None:
    """Write a pilot file, atomically, with a line for each key, price and probe.

    Raises:
        FileProblem: the file cannot be written.
    """
    document = dump_pilot(pilot)
    prices = ",\n".join(f"    {json.dumps(name)}: {json.dumps(price)}" for name, price in document["prices"].items())
    probes = ",\n".join(f"    {json.dumps(probe)}" for probe in document["probes"])
    bodies = {"prices": f"{{\n{prices}\n  }}", "probes": f"[\n{probes}\n  ]"}
    lines = [f"  {json.dumps(key)}: {bodies.get(key) or json.dumps(value)}" for key, value in document.items()]
    write_file(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
