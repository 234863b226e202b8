"""The page's colours and style sheet, for light and dark mode."""

#: The name of a timeline's spans: what it means, and its colour. The colours are distinct for any colour vision (after
#: Okabe and Ito), as fills on light and on dark backgrounds.
_SPANS = {
    "wait": ("the trainer waits", "#d55e00"),
    "step": ("the trainer computes", "#009e73"),
    "next": ("the loader works in the trainer", "#8a8f98"),
    "move": ("the trainer issues a copy to the device", "#a65628"),
    "copy": ("the device copies", "#4d9221"),
    "produce": ("a worker makes a microbatch", "#0072b2"),
    "build": ("the factory opens a shard", "#7b5ea7"),
    "store": ("a worker waits for bytes from storage", "#e69f00"),
    "replay": ("a worker remakes a microbatch from before a resume", "#cc79a7"),
    "encode": ("a worker writes a microbatch to shared memory", "#56b4e9"),
    "blocked": ("a worker waits for free memory or for permission", "#b9a44c"),
    "idle": ("a worker has no shard", "var(--idle)"),
}

MEANINGS = {name: meaning for name, (meaning, _) in _SPANS.items()}
"""The meaning of each colour. The names are those of a timeline's spans."""

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1e21;--faint:#6b7280;--grid:#e3e5e8;--card:#f5f6f8;--idle:#d5d8dd}
@media (prefers-color-scheme:dark){:root{--paper:#15171a;--ink:#e6e8eb;--faint:#9aa1ab;--grid:#2c3036;
--card:#1e2126;--idle:#3d434c}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1040px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:19px;font-weight:600;color:var(--faint);margin:0 0 10px}
h2{font-size:20px;margin:38px 0 4px}h3{font-size:14px;margin:14px 0 2px}
.verdict{font-size:21px;line-height:1.4;margin:0 0 20px;padding:14px 18px;background:var(--card);
border-left:6px solid #d55e00;border-radius:4px}.verdict.caller,.verdict.start{border-color:#009e73}
code{font:0.92em ui-monospace,monospace}
ul{list-style:none;padding:0;margin:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(125px,1fr));gap:10px;margin-bottom:20px}
.tiles li{background:var(--card);border-radius:4px;padding:10px 12px;font-size:13px;color:var(--faint);line-height:1.3}
.tiles b{display:block;font-size:20px;color:var(--ink)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px}
.legend i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.note,figure p{color:var(--faint);font-size:13.5px;margin:0 0 6px}
svg{display:block;width:100%;height:auto}
.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:24px}figure{margin:0}
.grid{stroke:var(--grid)}.tick,.lane{fill:var(--faint);font:11px system-ui,sans-serif;text-anchor:middle}
.left,.lane{text-anchor:end}.lane{font-size:12px;fill:var(--ink)}
.line{fill:none;stroke:#0072b2;stroke-width:1.5}.area{fill:#0072b2;opacity:.18}
.mark{stroke:var(--ink);stroke-width:2;stroke-dasharray:5 4}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--grid);vertical-align:top}
th{font-weight:400;color:var(--faint);white-space:nowrap}.pair td{text-align:right;font-variant-numeric:tabular-nums}
@media (max-width:760px){.pair{grid-template-columns:minmax(0,1fr)}.verdict{font-size:18px;overflow-wrap:anywhere}
main{padding:16px 14px 40px}h1{overflow-wrap:anywhere}.plot{overflow-x:auto}.plot svg{min-width:700px}
.tick{font-size:15px}.lane{font-size:15px}.pair .tick{font-size:13px}th{white-space:normal}}
""" + "".join(
    f"rect.{name}{{fill:{colour}}}.legend .{name}{{background:{colour}}}" for name, (_, colour) in _SPANS.items()
)
