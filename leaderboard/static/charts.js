// Plots are drawn again from their data with Observable Plot: they fit their place, follow the filters, name
// what is under the pointer, and their data can be saved. Without scripts the drawing in the page remains.
"use strict";

const HEIGHT = 320, NAMED_MOST = 16, LETTER = 6.8, LINE = 14; // pixels
const SYMBOLS = { disc: d3.symbolCircle, square: d3.symbolSquare, diamond: d3.symbolDiamond, triangle: d3.symbolTriangle, plus: d3.symbolCross };
const GREY = 8, COLOURS = 9; // as in plot.py
const DASHES = [null, "9 3", "3 3", "12 3 2 3", "6 6"];
const show = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 4 });
const colour = (number) => `var(--c${number % COLOURS})`;

// The points of each series that a filter leaves, and of results at most as many as one can tell apart.
function pickSeries(data, isSeen) {
  const keys = new Set();
  return data.series.flatMap((series) => {
    const points = series.points.map(([x, y], place) => ({ x, y, end: series.ends?.[place],
      id: series.keys?.[place] ?? series.key, label: series.label })).filter((point) => isSeen(point.id));
    if (!points.length || (data.most && series.key && keys.add(series.key).size > data.most)) return [];
    return [{ dash: DASHES[Math.floor(series.colour / COLOURS)], ...series, points }];
  });
}

// The corners of the line that joins the points that no other beats in both numbers.
function findFront(points) {
  const beats = (other, one) => other.x <= one.x && other.y <= one.y && (other.x < one.x || other.y < one.y);
  const front = d3.sort(points.filter((one) => !points.some((other) => beats(other, one))), (point) => point.x);
  return front.flatMap((point, place) => [...(place ? [{ x: point.x, y: front[place - 1].y }] : []), point]);
}

// The scale and the marks of an axis with room for so many numbers: those that are given, or round ones.
function makeAxis(letter, axis, values, room) {
  const low = Math.min(...values), high = Math.max(...values);
  const isLog = axis.log ?? (low > 0 && high > 8 * low);
  const margin = high > low * 1.000001 ? (high / low) ** 0.05 : 1.5, domain = [low / margin, high * margin];
  const place = isLog ? d3.scaleLog([low, high], [0, room]) : d3.scaleLinear([low, high], [0, room]);
  const given = axis.ticks.filter(([value]) => value >= low && value <= high)
    .reduce((kept, tick) => (!kept.length || place(tick[0]) - place(kept.at(-1)[0]) > 0.9 ? [...kept, tick] : kept), []);
  const round = isLog ? ticks(...domain, room).map((value) => [value, show(value)]) : null;
  return { scale: { label: null, axis: null, type: isLog ? "log" : "linear", ...(isLog ? { domain } : { nice: true, zero: axis.zero && low >= 0 }) },
    name: `${axis.label}${isLog ? ", log scale" : ""}`, marks: markAxis(letter, given.length > 1 ? given : round, room) };
}

// Lines and numbers of an axis at given values with their texts, else at round ones.
function markAxis(letter, marked, room) {
  const values = marked?.map(([value]) => value), text = (value) => marked.find((one) => one[0] === value)[1];
  return [Plot[`grid${letter}`](values, { ticks: room }), Plot[`axis${letter}`](values, { label: null, ...(marked ? { text } : { ticks: room, tickFormat: show }) })];
}

// Say to whom a drawn line or point belongs, so that it stands out with its row.
const tag = (of) => (index, scales, values, dimensions, context, next) => {
  const group = next(index, scales, values, dimensions, context);
  group.dataset.kind = typeof of === "string" ? "lines" : "points";
  [...group.children].forEach((child, place) => { child.dataset.of = typeof of === "string" ? of : of[index[place]]?.id ?? ""; });
  return group;
};

const findBest = (points) => d3.sort(d3.rollup(points, (same) => d3.least(same, (point) => point.y), (point) => point.x).values(), (point) => point.x);

function drawSeries({ points, key, colour: number, shape, mark, line: kind, dash, band = [], is_best: isBest }) {
  const stroke = colour(number), best = isBest ? findBest(points) : points, ends = points.filter((point) => point.end);
  const line = (data, more) => Plot.line(data, { x: "x", y: "y", stroke, strokeWidth: 1.8, render: tag(key), ...more });
  const ideal = isBest ? best.map((point) => ({ x: point.x, y: (best[0].y * best[0].x) / point.x })) : [];
  const at = mark === "cross_at_end" ? [points.at(-1)] : mark === "none" ? [] : points, isDot = mark === "dot";
  return [
    Plot.areaY(band, { x: "0", y1: "1", y2: "2", fill: stroke, fillOpacity: 0.13, render: tag(key) }),
    line(ideal.slice(0, ideal.length > 1 ? undefined : 0), { strokeDasharray: "2 4", strokeOpacity: 0.7, clip: true }),
    line(kind !== "none" && best.length > 1 ? best : [], { strokeDasharray: kind === "dashed" ? "2 4" : dash }),
    Plot.ruleX(ends, { x: "x", y1: (point) => point.end[0], y2: (point) => point.end[1], stroke, render: tag(ends) }),
    Plot.dot(at, { x: "x", y: "y", symbol: isDot ? SYMBOLS[shape] : "times", r: 4, [isDot ? "fill" : "stroke"]: stroke, strokeWidth: 2, render: tag(at) }),
  ];
}

// One picture with one name, for a screen reader; the numbers are in the table below.
function polish(svg, title) {
  for (const part of all("[aria-label]", svg)) part.removeAttribute("aria-label");
  set(svg, { role: "img", "aria-label": title });
  return svg;
}

// The names of series beside their last points, apart from each other, inside the frame and not over other points;
// how many there is no place for.
function nameLines(svg, named, points, bottom) {
  const x = svg.scale("x"), y = svg.scale("y");
  const ends = named.map((series) => [series, series.is_best ? d3.greatest(series.points, (point) => point.x) : series.points.at(-1)])
    .map(([series, point]) => ({ series, x: x.apply(point.x), y: y.apply(point.y) + 4 })).sort((a, b) => a.y - b.y);
  ends.forEach((end, place) => { end.y = Math.max(end.y, place ? ends[place - 1].y + LINE : 14); });
  ends.reduceRight((limit, end) => (end.y = Math.min(end.y, limit)) - LINE, bottom - 3);
  const places = points.map((point) => [x.apply(point.x), y.apply(point.y)]);
  const free = ends.filter((end) => !places.some(([a, b]) => a > end.x + 4 && a < end.x + 8 + LETTER * end.series.short.length && b > end.y - LINE && b < end.y + 4));
  svg.append(...free.map((end) => drawing("text", { class: "direct over", "text-anchor": "start", x: end.x + 8, y: end.y, "data-of": end.series.key }, end.series.short)));
  return ends.length - free.length;
}

// The legend: an item for each name, with a sample of its line and its mark.
function drawLegend(shown) {
  const items = d3.groups(shown.filter((series) => series.legend), (series) => series.legend + series.line).map(([, same]) => {
    const { legend, line, dash, mark, shape, colour: number } = same[0];
    const sample = drawing("svg", { class: `sample c${number % COLOURS}`, viewBox: "0 0 26 12", "aria-hidden": true });
    if (line !== "none") sample.append(drawing("polyline", { class: line, points: "1,6 25,6", ...(dash && { "stroke-dasharray": dash }) }));
    if (mark === "dot") sample.append(drawing("path", { class: "dot", transform: "translate(13 6)", d: d3.symbol(SYMBOLS[shape], 56)() }));
    const item = make("li", { tabIndex: 0 }, sample, legend);
    item.dataset.of = same.map((one) => one.key).join(" ");
    return item;
  });
  return make("ul", { className: "legend" }, ...items);
}

// A chart of that width with its legend, or nothing where there is nothing to see.
function drawChart(data, title, width, isSeen) {
  const shown = pickSeries(data, isSeen), points = shown.flatMap((series) => series.points);
  if (!points.some((point) => point.id || !data.series.some((series) => series.key))) return [];
  const front = data.front ? findFront(points) : [], joined = front.length > 1 ? [{ legend: data.front, colour: GREY, line: "dashed", mark: "none" }] : [];
  const names = [...new Map(shown.filter((series) => series.key && series.label).map((series) => [series.label, series])).values()];
  const named = width >= 420 && names.length > 1 && names.length <= NAMED_MOST ? names : [];
  const right = named.length ? Math.min(0.4 * width, 20 + LETTER * Math.max(...named.map((series) => series.short.length))) : 16;
  const ys = [points.map((point) => point.y), points.flatMap((point) => point.end ?? []), shown.flatMap((series) => series.band ?? []).flatMap((corner) => corner.slice(1)), data.guides.map((guide) => guide[0])].flat();
  const x = makeAxis("X", data.x, points.map((point) => point.x), Math.max(3, Math.floor((width - right - 60) / 55))), y = makeAxis("Y", data.y, ys, 8);
  const tell = (point) => `${point.label}\n${data.x.label}: ${show(point.x)}\n${data.y.label}: ${show(point.y)}${point.end ? ` (${point.end.map(show).join(" to ")})` : ""}`;
  const svg = Plot.plot({
    width, height: HEIGHT, marginLeft: 62, marginRight: right, marginTop: 26, marginBottom: 42, x: x.scale, y: y.scale,
    style: { fontSize: "12px", overflow: "visible" }, symbol: { type: "identity" },
    marks: [...x.marks, ...y.marks, Plot.line(front, { x: "x", y: "y", stroke: colour(GREY), strokeDasharray: "2 4" }), ...d3.reverse(shown).flatMap(drawSeries),
      Plot.ruleY(data.guides, { y: "0", strokeDasharray: "6 4" }),
      Plot.text(data.guides, { y: "0", text: "1", frameAnchor: "left", dx: 5, dy: -7, textAnchor: "start", stroke: "var(--page)", fill: "var(--text)", strokeWidth: 4 }),
      Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: tell }))],
  });
  svg.append(drawing("text", { class: "label", "text-anchor": "start", x: 2, y: 12 }, `↑ ${y.name}`),
    drawing("text", { class: "label", "text-anchor": "end", x: width - right, y: HEIGHT - 5 }, `${x.name} →`));
  const left = nameLines(svg, named, points, HEIGHT - 42), legend = drawLegend([...shown, ...joined]);
  return [polish(svg, title), ...(left || joined.length || legend.children.length > Math.max(1, named.length) ? [legend] : [])];
}

// A figure that is drawn again whenever its place or what is seen changes.
function showChart(figure, data, title) {
  const area = make("div"), button = make("button", { type: "button", className: "quiet" }, "data (CSV)");
  const isSeen = (id) => !id || seenResults.get(id) !== false;
  const draw = () => {
    if (!figure.isConnected) return;
    const made = drawChart(data, title, Math.max(280, Math.floor(figure.clientWidth)), isSeen);
    area.replaceChildren(...(made.length ? made : [make("p", { className: "muted" }, "No result of this chart matches the filters.")]));
  };
  button.addEventListener("click", () => save(`${title}.csv`, writeCsv([["series", data.x.label, data.y.label, "low", "high"],
    ...pickSeries({ ...data, most: null }, isSeen).flatMap((series) => series.points.map((point) => [point.label, point.x, point.y, ...(point.end ?? ["", ""])]))])));
  for (const old of all(":scope > svg, :scope > .legend", figure)) old.remove();
  figure.querySelector("figcaption").after(area);
  (figure.querySelector("details") ?? area).after(button);
  document.addEventListener("filtered", draw);
  let before = 0;
  new ResizeObserver(() => { if (Math.abs(figure.clientWidth - before) > 8) { before = figure.clientWidth; draw(); } }).observe(figure);
}

// A figure that is not in the page yet.
function makeFigure(data, title) {
  const figure = make("figure", { className: "plot" }, make("figcaption", {}, make("b", {}, title)));
  showChart(figure, { guides: [], ...data }, title);
  return figure;
}

for (const holder of all("figure.plot > script")) showChart(holder.parentElement, JSON.parse(holder.textContent), holder.parentElement.querySelector("figcaption b").textContent);
