"""The look of the report: one style sheet, for light and dark screens."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #ffffff; --soft: #6a6a6a; --rule: #dddddd;
  --t: #f0e6d2; --d: #c4e6cd; --b: #cfe0fa; --c: #f6d3e6; --e: #d9d3f5; --f: #c9eeee; --g: #e6efb5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #161616; --soft: #a0a0a0; --rule: #3a3a3a;
  --t: #4a3c1c; --d: #1f5135; --b: #1f3f70; --c: #632a4b; --e: #40337a; --f: #1c5353; --g: #4b521c; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
p, li { max-width: 46rem; } .note { color: var(--soft); margin: .6rem 0 .2rem; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--rule); }
td.n { font-variant-numeric: tabular-nums; }
td.n + td.n { white-space: nowrap; }
.wide { overflow-x: auto; }
svg { display: block; margin: .4rem 0; } svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
.grid { stroke: var(--rule); } .mark { stroke: var(--ink); stroke-dasharray: 4 3; }
.interval { stroke: var(--ink); stroke-width: 1.3; }
.key { display: inline-block; margin-right: 1rem; } .key i { display: inline-block; width: .8rem; height: .8rem;
  margin-right: .35rem; vertical-align: -.1rem; }
.tokens { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.7 ui-monospace, monospace; padding: .5rem;
  border: 1px solid var(--rule); border-radius: 4px; }
.tokens b { font-weight: normal; border-radius: 3px; }
.t { background: var(--t); } .d, .p0 { background: var(--d); }
.p1 { background: var(--b); } .p2 { background: var(--c); }
.p3 { background: var(--e); } .p4 { background: var(--f); } .p5 { background: var(--g); }
.legend b { font-weight: normal; border-radius: 3px; padding: 0 .35rem; margin-right: .6rem; }
ul { padding-left: 1.2rem; }
pre { overflow-x: auto; font: 12px/1.5 ui-monospace, monospace; }
"""
