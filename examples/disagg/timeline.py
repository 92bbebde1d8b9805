"""Draws a handoff as an SVG: when each layer was computed, when it moved, and when the tokens came."""

COLOURS = {"compute": "#3b7dd8", "transfer": "#e08a2e", "token": "#4f9d57"}
LEFT, WIDTH, ROW = 90, 900, 22


def draw(computed, told, tokens):
    """`computed` are the moments at which the layers' computation began and ended, `told` those at which the
    decode worker was told of each layer, by rank, `tokens` those of its tokens. All are of one clock."""
    bars = []
    for layer, (start, end) in enumerate(zip(computed, computed[1:])):
        bars.append((layer, start, end, "compute"))
        bars.append((layer, end, max(rank[layer] for rank in told), "transfer"))
    rows = len(computed) - 1
    bars += [(rows, start, end, "token") for start, end in zip(tokens, tokens[1:])]

    origin = computed[0]
    scale = WIDTH / (tokens[-1] - origin)
    height = ROW * (rows + 3)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for row in range(rows + 1):
        name = f"layer {row}" if row < rows else "decode"
        lines.append(f'<text x="8" y="{ROW * row + 20}">{name}</text>')
    for row, start, end, kind in bars:
        x, width = LEFT + (start - origin) * scale, max((end - start) * scale, 1)
        lines.append(
            f'<rect x="{x:.1f}" y="{ROW * row + 8}" width="{width:.1f}" height="{ROW - 6}" '
            f'fill="{COLOURS[kind]}"><title>{kind}: {1000 * (end - start):.2f} ms</title></rect>'
        )
    for at, (kind, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * at
        lines.append(f'<rect x="{x}" y="{height - 24}" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="{height - 14}">{kind}</text>')
    total = 1000 * (tokens[-1] - origin)
    lines.append(f'<text x="{LEFT + WIDTH}" y="{height - 14}" text-anchor="end">{total:.0f} ms</text>')
    return "\n".join([*lines, "</svg>\n"])
