"""Draws the results of `ferry-compare peers`: plot.py RESULTS.json OUT writes OUT.png and OUT.svg.

Throughput of WRITE and READ, and latency, a group of bars a row; a bar's line is the interval of its median.
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plot  # noqa: E402  (the backend comes first)
from matplotlib import colors, ticker  # noqa: E402

# The colours of benches/compare/src/screen.rs (Okabe and Ito), which colour-blind readers can tell apart.
FAMILIES = {"raw": "#767676", "ferry": "#0072b2", "Mooncake": "#e69f00", "NIXL": "#009e73"}
OTHER = "#d55e00"
# Engines of one family differ in brightness and in hatching.
HATCHES = ["", "//", "..", "xx", "\\\\"]


def main(source, out):
    with open(source, encoding="utf-8") as file:
        results = json.load(file)
    engines = [engine["engine"] for engine in results["engines"]]
    named = lambda text, without: [
        row for row in results["rows"] if row["row"].startswith(text) and without not in row["row"]
    ]
    latency = [row for row in results["rows"] if row["row"].endswith("synchronous")]
    throughput = [row for row in named("WRITE", "synchronous") if "peers" not in row["row"]]
    panels = [
        ("WRITE, GB/s", throughput, "gb_per_second", "linear"),
        ("READ, GB/s", named("READ", "synchronous"), "gb_per_second", "linear"),
        ("one synchronous WRITE, µs p50", latency, "p50_us", "log"),
    ]
    panels = [panel for panel in panels if panel[1]]
    if not panels:
        print("plot: no row that is drawn was measured")
        return
    figure, axes = plot.subplots(len(panels), 1, figsize=(13, 4 * len(panels)), squeeze=False)
    for axis, panel in zip(axes[:, 0], panels):
        draw(axis, engines, *panel)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=5, fontsize=8)
    machine = results["machine"]
    title = "%s, %d CPUs, Linux %s; medians of %d rounds in turn"
    figure.suptitle(title % (machine["cpu_model"], machine["cpus_allowed"], machine["kernel"], results["plan"]["rounds"]))
    figure.tight_layout(rect=(0, 0.08 if len(panels) > 1 else 0.2, 1, 1))
    figure.savefig(out + ".png", dpi=120)
    # No date and no random ids: the same figures give the same file.
    plot.rcParams["svg.hashsalt"] = "ferry"
    figure.savefig(out + ".svg", metadata={"Date": None})
    print("plot: %s.png, %s.svg" % (out, out))


def draw(axis, engines, title, rows, quantity, scale):
    width = 0.86 / len(engines)
    for index, engine in enumerate(engines):
        places, heights, errors = [], [], ([], [])
        for group, row in enumerate(rows):
            median = median_of(row, engine, quantity)
            if median is not None:
                places.append(group + (index - len(engines) / 2 + 0.5) * width)
                heights.append(median["median"])
                errors[0].append(median["median"] - median["low"])
                errors[1].append(median["high"] - median["median"])
        shade, hatch = look(engine, engines)
        axis.bar(
            places, heights, width, yerr=errors, label=engine, color=shade, hatch=hatch, edgecolor="white",
            linewidth=0, error_kw={"lw": 0.6},
        )
    axis.set_title(title, fontsize=10)
    axis.set_yscale(scale)
    if scale == "log":
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
    axis.set_xticks(range(len(rows)))
    axis.set_xticklabels([row["row"].split(" ", 1)[1].replace(" synchronous", "") for row in rows], fontsize=8)
    axis.grid(axis="y", lw=0.3)


def median_of(row, engine, quantity):
    cells = [cell for cell in row["cells"] if cell["side"] == engine]
    return cells[0]["medians"].get(quantity) if cells else None


def look(engine, engines):
    """Engines of one family have shades of one colour, and hatches of their own."""
    family = engine.split()[0]
    members = [name for name in engines if name.split()[0] == family]
    place = members.index(engine)
    share = 1 - 0.55 * place / len(members)
    red, green, blue = colors.to_rgb(FAMILIES.get(family, OTHER))
    shade = tuple(1 - share * (1 - part) for part in (red, green, blue))
    return shade, HATCHES[place % len(HATCHES)]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
