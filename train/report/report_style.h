// The style sheet of the page (report_html.h), with the colours of its charts (svg_chart.h) for
// light and dark screens.
#pragma once

namespace forebay {

inline constexpr char kReportStyle[] = R"(
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2430; --soft: #5d6878; --rule: #e3e7ec; --axis: #9aa5b3;
  --c0: #1f6fc0; --c1: #d1642b; --c2: #2c8a57; --c3: #b8387f; --c4: #7556b8; --c5: #a87a08; --c6: #0f8f9c; --c7: #5c6673;
  --p0: #7fa8d6; --p1: #d1642b; --p2: #e5a83b; --p3: #2c8a57; --p4: #b8387f; --p5: #0f8f9c; --p6: #7556b8;
  --p7: #8a5a3c; --p8: #c8433f; --p9: #d58bb8; --p10: #3f6b4f; --p11: #6b7684; --p12: #a9b2bd; --p13: #d4d9df;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1b212a; --ink: #e4e9f0; --soft: #98a4b3; --rule: #2b333f; --axis: #667283;
    --c0: #6cb0f5; --c1: #f39a63; --c2: #66c793; --c3: #ef80bb; --c4: #b29df0; --c5: #e0b84d; --c6: #55cbd6; --c7: #a9b4c2;
    --p0: #4a78ab; --p1: #f08a50; --p2: #ecc05c; --p3: #5cbd89; --p4: #e774b1; --p5: #4fc3ce; --p6: #a88fe8;
    --p7: #b98463; --p8: #ee7470; --p9: #f0b4d6; --p10: #7fa98d; --p11: #8b97a6; --p12: #6f7b89; --p13: #48525f;
  }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 24px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1480px; margin: 0 auto; }
h1 { font-size: 24px; margin: 0; }
h2 { font-size: 17px; margin: 0 0 8px; }
header p { color: var(--soft); margin: 0 0 20px; }
section, figure { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 16px 18px; margin: 0 0 16px; }
section { overflow-x: auto; }
.charts, .panels { display: grid; gap: 16px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); }
.charts > * { margin: 0; min-width: 0; }
.wide { grid-column: 1 / -1; }
figcaption { font-weight: 600; margin: 0 0 6px; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: 4px 28px 4px 0; border-bottom: 1px solid var(--rule);
  overflow-wrap: anywhere; }
td { min-width: 12em; font-variant-numeric: tabular-nums; }
tbody th { font-weight: 400; color: var(--soft); white-space: nowrap; }
tr:last-child > * { border-bottom: 0; }
ul.notes { margin: 0; padding-left: 20px; }
.none, .panel { color: var(--soft); margin: 0; }
.panel { font-size: 14px; }
.plot { display: block; width: 100%; height: auto; }
.plot text { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.plot .mid { text-anchor: middle; }
.plot .end { text-anchor: end; }
.rule { stroke: var(--rule); fill: none; }
.axis { stroke: var(--axis); fill: none; }
.line { stroke: var(--c); stroke-width: 1.8; fill: none; stroke-linejoin: round; stroke-linecap: round; }
.dashed { stroke-dasharray: 5 4; }
.level { stroke: var(--c); stroke-width: 1.4; stroke-dasharray: 1.5 3.5; stroke-linecap: round; fill: none; }
.dot { fill: var(--c); }
.faint { opacity: 0; }
.dot:hover { opacity: 1; }
.bar:hover rect { opacity: 0.8; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 8px 0 0; padding: 0;
  font-size: 13px; color: var(--soft); }
.key { height: 9px; margin-right: 6px; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.p0 { fill: var(--p0); } .p1 { fill: var(--p1); } .p2 { fill: var(--p2); } .p3 { fill: var(--p3); }
.p4 { fill: var(--p4); } .p5 { fill: var(--p5); } .p6 { fill: var(--p6); } .p7 { fill: var(--p7); }
.p8 { fill: var(--p8); } .p9 { fill: var(--p9); } .p10 { fill: var(--p10); } .p11 { fill: var(--p11); }
.p12 { fill: var(--p12); }
@media print { body { background: none; padding: 0; } figure { break-inside: avoid; } }
)";

}  // namespace forebay
