// Plots are drawn again from their data with Observable Plot: they fit their place, follow the filters, name
// what is under the pointer, and their data can be saved. Without scripts the drawing in the page remains.
"use strict";

const HEIGHT = 320, NAMED_MOST = 8, LETTER = 6.8, LINE = 14; // pixels
const SYMBOLS = { disc: d3.symbolCircle, square: d3.symbolSquare, diamond: d3.symbolDiamond, triangle: d3.symbolTriangle, plus: d3.symbolCross };
const show = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 4 });
const colour = (number) => `var(--c${number})`;

// The points of each series that a filter leaves, and of results at most as many as one can tell apart.
function pickSeries(data, isSeen) {
  const keys = new Set();
  return data.series.flatMap((series) => {
    const points = series.points.map(([x, y], place) => ({ x, y, end: series.ends?.[place],
      id: series.keys?.[place] ?? series.key, label: series.label })).filter((point) => isSeen(point.id));
    if (!points.length || (data.most && series.key && keys.add(series.key).size > data.most)) return [];
    return [{ ...series, points }];
  });
}

// The corners of the line that joins the points that no other beats in both numbers.
function findFront(points) {
  const beats = (other, one) => other.x <= one.x && other.y <= one.y && (other.x < one.x || other.y < one.y);
  const front = d3.sort(points.filter((one) => !points.some((other) => beats(other, one))), (point) => point.x);
  return front.flatMap((point, place) => [...(place ? [{ x: point.x, y: front[place - 1].y }] : []), point]);
}

function makeAxis(axis, values, room, across = false) {
  const low = Math.min(...values), high = Math.max(...values);
  const isLog = axis.log ?? (low > 0 && high > 8 * low);
  const place = (value) => (isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low)) * room;
  const given = axis.ticks.filter(([value]) => value >= low && value <= high).reduce((kept, tick) => (!kept.length || place(tick[0]) - place(kept.at(-1)[0]) > 0.9 ? [...kept, tick] : kept), []);
  const scale = { label: null, axis: null, type: isLog ? "log" : "linear", nice: !isLog, zero: axis.zero && low >= 0 }, margin = high > low * 1.000001 ? (high / low) ** 0.05 : 1.5;
  if (isLog) scale.domain = [low / margin, high * margin];
  const marked = given.length > 1 ? given : isLog ? ticks(...scale.domain, room).map((value) => [value, show(value)]) : undefined;
  return { scale, name: `${axis.label}${isLog ? ", log scale" : ""}`, marks: markAxis(across ? "X" : "Y", marked, room) };
}

// Lines and numbers of an axis at given values with their texts, else at round ones.
function markAxis(letter, marked, room) {
  const values = marked?.map(([value]) => value), text = (value) => marked.find((one) => one[0] === value)[1];
  return marked ? [Plot[`grid${letter}`](values), Plot[`axis${letter}`](values, { text, label: null })]
    : [Plot[`grid${letter}`]({ ticks: room }), Plot[`axis${letter}`]({ ticks: room, label: null, tickFormat: show })];
}

// Say to whom a drawn line or point belongs, so that it stands out with its row.
const tag = (of) => (index, scales, values, dimensions, context, next) => {
  const group = next(index, scales, values, dimensions, context);
  group.dataset.kind = typeof of === "string" ? "lines" : "points";
  [...group.children].forEach((child, place) => { child.dataset.of = typeof of === "string" ? of : of[index[place]]?.id ?? ""; });
  return group;
};

function drawSeries(series) {
  const { points } = series, stroke = colour(series.colour), marks = [];
  const best = series.is_best ? d3.sort(d3.rollup(points, (same) => d3.least(same, (point) => point.y), (point) => point.x).values(), (point) => point.x) : points;
  const line = (data, more) => Plot.line(data, { x: "x", y: "y", stroke, strokeWidth: 1.8, render: tag(series.key), ...more });
  if (series.band?.length) marks.push(Plot.areaY(series.band, { x: "0", y1: "1", y2: "2", fill: stroke, fillOpacity: 0.13, render: tag(series.key) }));
  if (series.is_best && best.length > 1) marks.push(line(best.map((point) => ({ x: point.x, y: (best[0].y * best[0].x) / point.x })), { strokeDasharray: "2 4", strokeOpacity: 0.7, clip: true }));
  if (series.line !== "none" && best.length > 1) marks.push(line(best, { strokeDasharray: series.line === "dashed" ? "2 4" : series.dash }));
  const ends = points.filter((point) => point.end);
  if (ends.length) marks.push(Plot.ruleX(ends, { x: "x", y1: (point) => point.end[0], y2: (point) => point.end[1], stroke, render: tag(ends) }));
  const at = series.mark === "cross_at_end" ? [points.at(-1)] : series.mark === "none" ? [] : points;
  const symbol = series.mark === "dot" ? SYMBOLS[series.shape] : "times";
  marks.push(Plot.dot(at, { x: "x", y: "y", symbol, r: 4, [series.mark === "dot" ? "fill" : "stroke"]: stroke, strokeWidth: 2, render: tag(at) }));
  return marks;
}

// One picture with one name, for a screen reader; the numbers are in the table below.
function polish(svg, title) {
  for (const part of svg.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", title);
  return svg;
}

// The names of series beside their last points, apart from each other and inside the frame.
function nameLines(svg, named, bottom) {
  const x = svg.scale("x"), y = svg.scale("y");
  const ends = named.map((series) => [series, series.is_best ? d3.greatest(series.points, (point) => point.x) : series.points.at(-1)])
    .map(([series, point]) => ({ series, x: x.apply(point.x), y: y.apply(point.y) + 4 })).sort((a, b) => a.y - b.y);
  ends.forEach((end, place) => { end.y = Math.max(end.y, place ? ends[place - 1].y + LINE : 14); });
  ends.reduceRight((limit, end) => (end.y = Math.min(end.y, limit)) - LINE, bottom - 3);
  svg.append(...ends.map((end) => drawing("text", { class: "direct over", "text-anchor": "start", x: end.x + 8, y: end.y, "data-of": end.series.key }, end.series.short)));
}

// A chart of that width, or nothing where there is nothing to see.
function drawChart(data, width, isSeen = () => true) {
  const shown = pickSeries(data, isSeen), points = shown.flatMap((series) => series.points);
  if (!points.some((point) => point.id || !data.series.some((series) => series.key))) return [];
  const front = data.front ? findFront(points) : [], joined = front.length > 1 ? [{ legend: data.front, colour: 8, line: "dashed", mark: "none" }] : [];
  const names = [...new Map(shown.filter((series) => series.key && series.label).map((series) => [series.label, series])).values()];
  const named = width >= 420 && names.length > 1 && names.length <= NAMED_MOST ? names : [];
  const ys = [...points.map((point) => point.y), ...points.flatMap((point) => point.end ?? []), ...shown.flatMap((series) => (series.band ?? []).flatMap((corner) => corner.slice(1))), ...data.guides.map((guide) => guide[0])];
  const right = named.length ? Math.min(0.4 * width, 20 + LETTER * Math.max(...named.map((series) => series.short.length))) : 16;
  const x = makeAxis(data.x, points.map((point) => point.x), Math.max(3, Math.floor((width - right - 60) / 55)), true), y = makeAxis(data.y, ys, 8);
  const svg = Plot.plot({
    width, height: HEIGHT, marginLeft: 62, marginRight: right, marginTop: 26, marginBottom: 42, x: x.scale, y: y.scale, style: { fontSize: "12px", overflow: "visible" }, symbol: { type: "identity" },
    marks: [...x.marks, ...y.marks, Plot.line(front, { x: "x", y: "y", stroke: colour(8), strokeDasharray: "2 4" }), ...shown.flatMap(drawSeries),
      Plot.ruleY(data.guides, { y: "0", strokeDasharray: "6 4" }), Plot.text(data.guides, { y: "0", text: "1", frameAnchor: "left", dx: 5, dy: -7, textAnchor: "start", stroke: "var(--page)", fill: "var(--text)", strokeWidth: 4 }),
      Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: (point) => `${point.label}\n${data.x.label}: ${show(point.x)}\n${data.y.label}: ${show(point.y)}${point.end ? ` (${point.end.map(show).join(" to ")})` : ""}` }))],
  });
  svg.append(drawing("text", { class: "label", "text-anchor": "start", x: 2, y: 12 }, `↑ ${y.name}`), drawing("text", { class: "label", x: width - right, y: HEIGHT - 5, "text-anchor": "end" }, `${x.name} →`));
  nameLines(svg, named, HEIGHT - 42);
  const legend = [...new Map([...shown, ...joined].filter((series) => series.legend).map((series) => [series.legend + series.line, series])).values()];
  if (legend.length <= Math.max(1, named.length) && !joined.length) return [svg];
  const sample = (series) => drawing("svg", { class: `sample c${series.colour}`, viewBox: "0 0 26 12", "aria-hidden": true }, ...(series.line === "none" ? [] : [drawing("polyline", { class: series.line, points: "1,6 25,6" })]),
    ...(series.mark === "dot" ? [drawing("path", { class: "dot", transform: "translate(13 6)", d: d3.symbol(SYMBOLS[series.shape], 56)() })] : []));
  return [svg, make("ul", { className: "legend" }, ...legend.map((series) => {
    const item = make("li", { tabIndex: 0 }, sample(series), series.legend);
    item.dataset.of = shown.filter((one) => one.legend === series.legend).map((one) => one.key).join(" ");
    return item;
  }))];
}

// A figure that is drawn again whenever its place or what is seen changes.
function showChart(figure, data, title) {
  const area = make("div", {}), button = make("button", { type: "button", className: "quiet" }, "data (CSV)");
  const isSeen = (id) => !id || seenResults.get(id) !== false;
  const draw = () => {
    if (!figure.isConnected) return;
    const made = drawChart(data, Math.max(280, Math.floor(figure.clientWidth)), isSeen);
    if (made.length) polish(made[0], title);
    area.replaceChildren(...(made.length ? made : [make("p", { className: "muted" }, "No result of this chart matches the filters.")]));
  };
  button.addEventListener("click", () => save(`${title}.csv`, writeCsv([["series", data.x.label, data.y.label, "low", "high"],
    ...pickSeries({ ...data, most: null }, isSeen).flatMap((series) => series.points.map((point) => [point.label, point.x, point.y, ...(point.end ?? ["", ""])]))])));
  for (const old of figure.querySelectorAll(":scope > svg, :scope > .legend")) old.remove();
  figure.querySelector("figcaption").after(area);
  (figure.querySelector("details") ?? area).after(button);
  document.addEventListener("filtered", draw);
  let width = 0;
  new ResizeObserver(() => { if (Math.abs(figure.clientWidth - width) > 8) { width = figure.clientWidth; draw(); } }).observe(figure);
}

for (const holder of document.querySelectorAll("figure.plot > script")) showChart(holder.parentElement, JSON.parse(holder.textContent), holder.parentElement.querySelector("figcaption b").textContent);
