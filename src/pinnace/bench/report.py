"""One HTML file with everything that a colleague needs to judge a run. It loads nothing from anywhere."""

from __future__ import annotations

import base64
import datetime as dt
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinnace.bench.growth import plot as growth_plot
from pinnace.bench.growth.results import OBJECTIVES, cells
from pinnace.bench.measurements import Better, Group, Model
from pinnace.bench.preparation import notes
from pinnace.bench.published import NOTE, PUBLISHED, System, ratio
from pinnace.bench.results import errors_of, results_of
from pinnace.bench.table import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pinnace.bench.growth.directory import Growth
    from pinnace.bench.results import Result
    from pinnace.bench.run_directory import RunDirectory, Sample

STYLE = (Path(__file__).parent / "report.css").read_text()
COLUMNS = {"measurement": "word", "who": "word", "median": "figure", "quartiles": "figure", "unit": "word",
           "samples": "figure", "ratio to bare": "figure", "95 % interval": "figure"}  # fmt: skip
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def html(run: RunDirectory, plots: Sequence[Path] = (), growth: Growth | None = None) -> str:
    """The report: what was compared, the figures of each group with its plot, the machine, the method, the errors."""
    about, samples = run.about(), run.samples()
    results = results_of(samples)
    body = [
        *head(about, samples),
        *overview(results),
        *(line for group in Group for line in section(group, results, plots)),
        *(growth_section(growth, plots) if growth else ()),
        *errors(errors_of(samples)),
        *method(about),
        *machine(about),
    ]
    return PAGE.format(title=escape(title(about)), style=STYLE, body="\n".join(body))


def growth_html(growth: Growth, plots: Sequence[Path] = ()) -> str:
    """The report of a cluster's growth alone."""
    body = ["<h1>How a control plane in a Slurm job grows, with pinnace</h1>", *growth_section(growth, plots)]
    return PAGE.format(title="pinnace bench growth", style=STYLE, body="\n".join(body))


def title(about: dict[str, Any]) -> str:
    hosts = about["machine"].get("hosts", [])
    return f"pinnace bench: {', '.join(hosts)}" if hosts else "pinnace bench"


def head(about: dict[str, Any], samples: Sequence[Sample]) -> Iterator[str]:
    rounds = max((sample.round for sample in samples if not sample.error), default=0)
    when = dt.datetime.fromtimestamp(samples[0].begin, dt.UTC).strftime("%Y-%m-%d %H:%M UTC") if samples else ""
    yield "<h1>Kubernetes on Slurm with pinnace, against bare Slurm</h1>"
    yield (
        '<p class="lead">Every program ran on bare Slurm and in pinnace in turn, on the same hosts, in '
        f"{rounds} of {about['settings']['repeat']} rounds, {escape(when)}. Ratios are those of medians.</p>"
    )
    for note in notes(about):
        yield f'<p class="note">{escape(note)}</p>'


def overview(results: Sequence[Result]) -> Iterator[str]:
    """A table of ratios alone: figures down, models across."""
    models = [model for model in Model if model is not Model.BARE and any(found.model is model for found in results)]
    if not models:
        return
    yield '<h2>Ratios to bare Slurm</h2><table class="overview"><thead><tr><th>measurement</th><th>better</th>'
    yield "".join(f'<th class="figure">{escape(model.label)}</th>' for model in models) + "</tr></thead><tbody>"
    by_figure: dict[str, dict[Model, Result]] = {}
    for found in results:
        if found.ratio is not None:
            by_figure.setdefault(found.figure.name, {})[found.model] = found
    for of_models in by_figure.values():
        first = next(iter(of_models.values()))
        cells = "".join(ratio_cell(of_models.get(model)) for model in models)
        name = f"<td>{escape(f'{first.group}: {first.figure.title}')}</td>"
        yield f'<tr>{name}<td class="dim">{first.figure.better}</td>{cells}</tr>'
    yield "</tbody></table>"


def ratio_cell(found: Result | None) -> str:
    """A ratio, marked where its interval excludes 1; times of start-up are no matter of a percent."""
    if found is None or found.ratio is None:
        return '<td class="figure dim">-</td>'
    kind = ""
    if found.interval and not found.interval[0] <= 1 <= found.interval[1]:
        kind = " good" if (found.ratio > 1) == (found.figure.better is Better.MORE) else " bad"
    return f'<td class="figure{kind}">{found.ratio:.3f}</td>'


def section(group: Group, results: Sequence[Result], plots: Sequence[Path]) -> Iterator[str]:
    chosen = [found for found in results if found.group is group]
    if not chosen:
        return
    yield f"<h2>{escape(group.label)}</h2>"
    for plot in plots:
        if plot.suffix == ".svg" and plot.stem.endswith(f"-{group}"):
            yield image(plot, f"{group.label}: ratios to bare Slurm")
    heads = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind in COLUMNS.items())
    yield f"<table><thead><tr>{heads}</tr></thead><tbody>"
    shown = ""
    for index, found in enumerate(chosen):
        first = found.figure.name != shown
        shown = found.figure.name
        yield result_row(found, first=first)
        if index + 1 == len(chosen) or chosen[index + 1].figure.name != shown:
            yield from published_rows(found)
    yield "</tbody></table>"


def image(plot: Path, label: str) -> str:
    data = base64.b64encode(plot.read_bytes()).decode()
    return f'<img alt="{escape(label)}" src="data:image/svg+xml;base64,{data}"/>'


def growth_section(growth: Growth, plots: Sequence[Path]) -> Iterator[str]:
    """The table of sizes with its plot, and what is known of the host."""
    about = growth.conditions
    yield "<h2>Growth</h2>"
    yield f"<p>{escape(growth_method(about))}</p>"
    yield from (image(plot, "Growth") for plot in plots if plot.suffix == ".svg" and plot.stem == growth_plot.NAME)
    header, *rows = cells(growth.sizes)
    heads = "".join(f'<th class="{"word" if name == header[-1] else "figure"}">{escape(name)}</th>' for name in header)
    yield f'<table class="overview wrapped"><thead><tr>{heads}</tr></thead><tbody>'
    for row in rows:
        figures = "".join(f'<td class="figure">{escape(value)}</td>' for value in row[:-1])
        yield f"<tr>{figures}<td>{escape(row[-1])}</td></tr>"
    yield "</tbody></table>"
    missing = about.get("sizes", [])[len(growth.sizes) :]
    if missing:
        yield f'<p class="note">Not measured: {escape(", ".join(missing))} (nodes:pods).</p>'
    yield "<table><tbody>"
    if about.get("machine"):
        yield host_row(about["machine"])
    yield option_row(about.get("options", {}))
    yield from version_rows(about.get("versions", {}))
    yield "</tbody></table>"


def growth_method(about: Mapping[str, Any]) -> str:
    when = dt.datetime.fromtimestamp(about.get("begin", 0.0), dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"A cluster in a job, {when}. Nodes that kwok simulates, and pods of Deployments on them, were added up to "
        "each size; then single pods were created, ten a second, and timed until they were ready. The API's p99 is "
        "that of all requests meanwhile, and the memory and CPU time of its server are those that it reports itself. "
        "Kubernetes' own objectives for p99: the start of a pod "
        f"{OBJECTIVES['pod_start_p99']:g} s, requests about one object {OBJECTIVES['api_single_p99']:g} s, lists "
        f"{OBJECTIVES['api_list_p99']:g} s."
    )


def result_row(found: Result, *, first: bool) -> str:
    about = found.summary
    name = f"<td>{escape(found.figure.title) if first else ''}</td>"
    interval = f"{found.interval[0]:.3f} to {found.interval[1]:.3f}" if found.interval else ""
    return (
        f'<tr class="{"first" if first else "next"}">{name}<td>{escape(found.model.label)}</td>'
        f'<td class="figure">{number(about.median)}</td>'
        f'<td class="figure dim" title="least {number(about.least)}, most {number(about.most)}">'
        f"{number(about.low)} to {number(about.high)}</td>"
        f'<td>{escape(found.figure.unit)}</td><td class="figure dim">{about.count}</td>'
        f'{ratio_cell(found) if found.ratio is not None else "<td></td>"}<td class="figure dim">{interval}</td></tr>'
    )


def published_rows(found: Result) -> Iterator[str]:
    name = found.figure.published
    for system, value in PUBLISHED.get(name, {}).items():
        share = "" if system is System.BARE else f"{ratio(name, system):.3f}"
        yield (
            f'<tr class="published"><td></td><td>{escape(system)} (published)</td><td class="figure">{number(value)}'
            f'</td><td></td><td>{escape(found.figure.unit)}</td><td></td><td class="figure">{share}</td><td></td></tr>'
        )


def errors(samples: Sequence[Sample]) -> Iterator[str]:
    if samples:
        yield "<h2>Not measured</h2><ul>"
        for sample in samples:
            where = f"round {sample.round}, {sample.model.label}, {sample.task}"
            yield f"<li>{escape(where)}: {escape(sample.error)}</li>"
        yield "</ul>"


def method(about: dict[str, Any]) -> Iterator[str]:
    settings = about["settings"]
    parameters = settings["parameters"]
    points = [
        "All models had the same hosts and the same options of sbatch, and ran the same programs: those of the image "
        f"{settings['image']}, on bare hosts with the image's own libraries.",
        "Each round has a session of each model, one after another, and each round begins with another model. While "
        "one model is measured, nothing of the others runs. Measurements begin "
        f"{parameters.get('settle_seconds', 0):.0f} s after a cluster's start.",
        "The workload runs on the first host, which in a cluster in a job also has the control plane. Servers of the "
        "network tests are on the last host, outside of Kubernetes unless the name says “to a pod”.",
        "Start-up: from the command to the first line that the container or job writes, by the hosts' clocks. The "
        f"image is {settings['startup_image']}, and the hosts have had it before.",
        f"sysbench: {parameters['cpu_seconds']} s. STREAM: arrays of {parameters['elements'] * 8 / 2**20:.0f} MiB, "
        f"best of {parameters['stream_repetitions']}; an implementation of its kernels, not its original. "
        f"fio: a file of {parameters['fio_mib']} MiB, {parameters['fio_seconds']} s for each pattern, "
        f"{'direct I/O' if parameters['direct'] else 'with the page cache'}, psync. "
        f"iperf3: {parameters['iperf3_seconds']} s. TCP request/response: the median of {parameters['requests']:,}.",
        "Spread is the range of the quartiles. The interval of a ratio is a bootstrap of the ratio of medians (95 %); "
        "coloured ratios have an interval that excludes 1.",
        NOTE,
    ]
    yield "<h2>How it was measured</h2><ul>"
    yield from (f"<li>{escape(point)}</li>" for point in points)
    yield "</ul>"


def machine(about: dict[str, Any]) -> Iterator[str]:
    yield "<h2>Machine and versions</h2><table><tbody>"
    yield from map(host_row, about["machine"].get("descriptions", []))
    yield option_row(about["settings"]["options"])
    yield from version_rows(about["versions"])
    yield "</tbody></table>"


def host_row(host: Mapping[str, Any]) -> str:
    caches, memory = host["caches"] / 2**20, host["memory"] / 2**30
    text = (
        f"{host['cpu']}, {host['threads']} of {host['cpus']} threads used, {caches:.0f} MiB of last-level cache, "
        f"{memory:.0f} GiB of memory, Linux {host['kernel']}, load before the run {host['load']:.1f}"
    )
    return f"<tr><td>{escape(host['host'])}</td><td>{escape(text)}</td></tr>"


def option_row(given: Mapping[str, str | None]) -> str:
    options = " ".join(f"--{name}" if value is None else f"--{name}={value}" for name, value in given.items())
    return f"<tr><td>options</td><td>{escape(options or 'none')}</td></tr>"


def version_rows(versions: Mapping[str, str]) -> Iterator[str]:
    for name, version in versions.items():
        yield f"<tr><td>{escape(name)}</td><td>{escape(version)}</td></tr>"
