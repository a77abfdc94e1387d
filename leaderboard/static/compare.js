// Compare results: ratios with intervals as compliance/score/comparison.py computes them, over benchmarks,
// and what differs between the systems. Descriptions and curves are in a file of each result, which is
// read once the result is chosen.
"use strict";

const RUNS_DRAWN_MAX = 15; // lines in one plot; of more, the median run of each result
const SENTENCES_MAX = 4; // shown at once

const digits = (value) => (Math.abs(value - 1) < 0.005 ? value.toFixed(4) : value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1)
  : Math.round(value).toLocaleString("en-US"));

// How many times as fast the first of each pair is, as a geometric mean over the pairs (mean_ratio there).
// Two bases are compared by their own times; where one of two is charged, their own times must differ too.
function meanRatio(pairs, student) {
  const own = ([fast, slow]) => [fast.own ?? fast, slow.own ?? slow];
  const like = pairs.map((pair) => (pair[0].basis === pair[1].basis ? pair : own(pair)));
  const mixed = (pair) => Boolean(pair[0].charged) !== Boolean(pair[1].charged);
  const runs = pairs.flat().map((end) => end.runs);
  let [middle, low, high] = measure(like, student);
  if (low !== null && like.some(mixed)) {
    const [, least, most] = measure(like.map((pair) => (mixed(pair) ? own(pair) : pair)), student);
    [low, high] = least === null ? [null, null] : [Math.min(low, least), Math.max(high, most)];
  }
  return { value: Math.exp(middle), low: low === null ? null : Math.exp(low), high: high === null ? null : Math.exp(high), runs };
}

// The mean logarithm of the ratios and the ends of its interval (_measure there).
function measure(pairs, student) {
  const ends = pairs.flat(), count = pairs.length;
  const middle = pairs.reduce((sum, [fast, slow]) => sum + slow.mean - fast.mean, 0) / count;
  if (ends.some((end) => end.variance === null)) return [middle, null, null];
  const parts = ends.map((end) => [end.variance, end.degrees]).concat(pairs.flatMap(pointParts));
  const total = parts.reduce((sum, [part]) => sum + part, 0);
  const inverse = total > 0 ? parts.reduce((sum, [part, degrees]) => sum + (part / total) ** 2 / degrees, 0) : 0;
  const rounded = ends.some((end) => end.basis === "time") && inverse > 0; // trimmed times: Yuen's test
  const half = (quantile(student, rounded ? 1 / Math.max(1, Math.floor(1 / inverse + 1e-9)) : inverse) * Math.sqrt(total)) / count;
  return [middle, middle - half, middle + half];
}

// The squared error of each reference point in the difference of two scores.
function pointParts([fast, slow]) {
  const shares = new Map();
  for (const [sign, level] of [[1, fast], [-1, slow]]) {
    for (const [point, share, variance, degrees] of level.points) shares.set(point, [(shares.get(point)?.[0] ?? 0) + sign * share, variance, degrees]);
  }
  return [...shares.values()].filter(([share]) => share).map(([share, variance, degrees]) => [share ** 2 * variance, degrees]);
}

// Student's quantile from a table by one over the degrees of freedom.
function quantile(student, inverse) {
  const at = Math.min(inverse, 1) * (student.length - 1), step = Math.min(Math.floor(at), student.length - 2);
  return student[step] + (at - step) * (student[step + 1] - student[step]);
}

const isDifference = (found) => found.low !== null && (found.low > 1 || found.high < 1);
const interval = (found) => (found.low === null ? "too few runs" : `${digits(found.low)}–${digits(found.high)}`);

function sentence(first, second, found) {
  const runs = found.runs.join(" and ");
  if (found.low === null) {
    return `${first} against ${second}: ratio ${digits(found.value)}; ${runs} runs are too few for an interval, no difference can be claimed.`;
  }
  if (found.low <= 1 && found.high >= 1) {
    return `No difference between ${first} and ${second} can be claimed from ${runs} runs: ratio ${digits(found.value)}, 95% interval ${digits(found.low)}–${digits(found.high)}.`;
  }
  if (found.value < 1) {
    return sentence(second, first, { value: 1 / found.value, low: 1 / found.high, high: 1 / found.low, runs: [...found.runs].reverse() });
  }
  return `${first} is ${digits(found.value)}× faster than ${second}, 95% interval ${digits(found.low)}–${digits(found.high)} (${runs} runs).`;
}



const node = (kind, ...children) => make(kind, {}, ...children);
const head = (label, title) => make("th", { scope: "col", ...(title ? { title } : {}) }, label);
const address = (id, end) => `results/${id.split("/").map(encodeURIComponent).join("/")}${end}`;
const who = (result) => (result.division === "closed" ? result.name : `${result.name}, ${result.division}`);

function table(name, headers, rows) {
  return make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: name },
    make("table", { className: "plain" }, node("thead", node("tr", ...headers)), node("tbody", ...rows)));
}

// An axis of ratios that all rows of a table share.
function ratioAxis(ratios) {
  const ends = ratios.flatMap((found) => [found.value, found.low ?? 1, found.high ?? 1, 1]);
  const low = Math.log(Math.min(...ends)) - 0.05, high = Math.log(Math.max(...ends)) + 0.05;
  const place = (value) => `${100 * share(value)}%`;
  const share = (value) => (Math.log(value) - low) / (high - low);
  const marks = ticks(Math.exp(low), Math.exp(high)).reduce((kept, mark) => (mark === 1 || !kept.length || share(mark) - share(kept.at(-1)) > 0.13 ? [...kept, mark] : kept), []);
  const frame = (properties, ...children) => drawing("svg", { width: "100%", ...properties }, ...children);
  return {
    head: frame({ height: 18, "aria-hidden": true }, ...marks.map((mark) => drawing("text", { x: place(mark), y: 13, "text-anchor": "middle" }, `${mark}×`))),
    row: (found, colour) => frame({ height: 22, class: `c${colour}`, "aria-hidden": true },
      ...marks.map((mark) => drawing("line", { class: mark === 1 ? "one" : "gridline", x1: place(mark), x2: place(mark), y1: 0, y2: 22 })),
      ...(found.low === null ? [] : [drawing("line", { class: "interval", x1: place(found.low), x2: place(found.high), y1: 11, y2: 11 })]),
      drawing("circle", { cx: place(found.value), cy: 11, r: 4.6 })),
  };
}

// One line for each result of a benchmark, the fastest first, compared with the first that was chosen.
function compareGroup(name, results, data, act) {
  const [base, ...others] = results;
  const ratios = new Map(results.map((result) => [result, result === base ? { value: 1, low: null, high: null } : meanRatio([[result, base]], data.student)]));
  const axis = ratioAxis([...ratios.values()]);
  const rows = [...results].sort((a, b) => a.mean - b.mean).map((result) => {
    const found = ratios.get(result), place = results.indexOf(result);
    return node("tr",
      make("th", { scope: "row" }, make("a", { href: address(result.id, ".html") }, result.name), node("br"),
        make("span", { className: "muted" }, `${result.division}, ${result.hardware}${result.batch ? `, batch size ${result.batch}` : ""}`)),
      make("td", { className: "value" }, result.score),
      make("td", { className: "axis" }, axis.row(found, place % 8)),
      make("td", { className: "value" }, result === base ? "compared with" : `${digits(found.value)}×`, ...(result === base ? []
        : [make("span", { className: "muted" }, ` ${interval(found)}${isDifference(found) ? "" : ", no difference"}`)])),
      node("td", ...(result === base ? [] : [act("compare with this", result.name, () => act.choose([result.id, ...act.chosen()]))]),
        act("remove", result.name, () => act.choose(act.chosen().filter((id) => id !== result.id)))));
  });
  const said = others.map((other) => make("p", { className: "sentence" }, sentence(who(other), who(base), ratios.get(other))
    + (other.division === base.division ? "" : " They are of different divisions: not the same mathematics.")));
  return [node("h2", name),
    make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `comparison, ${name}` },
      make("table", { className: "ranking ratios" }, node("thead", node("tr", head("result"), head("score"),
        make("th", { scope: "col", className: "axis" }, make("span", { className: "unseen" }, "speed on a logarithmic axis"), axis.head),
        head("times as fast", "The time of the first result divided by that of this one, with its 95% interval"), head("change"))), node("tbody", ...rows))),
    ...(!others.length ? [make("p", { className: "muted" }, "Add a second result of this benchmark and scale.")]
      : said.length <= SENTENCES_MAX ? said : [node("details", node("summary", "in words"), ...said)])];
}

// Benchmarks as rows, systems as columns: how many times as fast each is as the first, and the mean of that.
function compareSystems(groups, data) {
  const names = [...new Set([...groups.values()].flat().map(who))];
  if (groups.size < 2 || names.length < 2) return [];
  const [base, ...others] = names, pairs = new Map(others.map((name) => [name, []]));
  const cell = (found) => node("td", found ? `${digits(found.value)}× ` : "", ...(found ? [make("span", { className: "muted" }, interval(found))] : []));
  const rows = [...groups].map(([group, results]) => {
    const first = results.find((result) => who(result) === base);
    return node("tr", make("th", { scope: "row" }, group), node("td", first?.score ?? ""), ...others.map((name) => {
      const other = results.find((result) => who(result) === name);
      if (!first || !other) return cell();
      pairs.get(name).push([other, first]);
      return cell(meanRatio([[other, first]], data.student));
    }));
  });
  if (![...pairs.values()].some((found) => found.length > 1)) return []; // nothing to average
  const means = others.map((name) => {
    const found = pairs.get(name);
    const made = cell(found.length > 1 ? meanRatio(found, data.student) : undefined);
    if (found.length > 1) made.append(make("span", { className: "muted" }, ` of ${found.length}`));
    return made;
  });
  rows.push(make("tr", { className: "total" }, make("th", { scope: "row" }, "geometric mean"), node("td"), ...means));
  return [node("h2", "Over the benchmarks"), make("p", { className: "muted" }, `How many times as fast as ${base}, with 95% intervals. Each mean is over the benchmarks that both have.`),
    table("comparison over the benchmarks", [head("benchmark"), head(base), ...others.map((name) => head(name))], rows)];
}

// Systems on the same batch size and as many devices as one of the first machine.
function compareBatches(results, data) {
  const machine = (result) => `${result.machine}, ${result.framework}`;
  const mine = results.filter((result) => machine(result) === machine(results[0]) && result.batch);
  const found = mine.flatMap((base) => results.filter((other) => machine(other) !== machine(base) && other.batch === base.batch
    && other.devices === base.devices && other.division === base.division).map((other) => [base, other, meanRatio([[other, base]], data.student)]));
  if (!found.length) return [];
  found.sort((a, b) => a[0].batch - b[0].batch || a[0].devices - b[0].devices);
  const rows = found.map(([base, other, one]) => node("tr", node("td", `${base.batch}`), node("td", `${base.devices}`), make("th", { scope: "row" }, machine(other)),
    node("td", `${digits(one.value)}× `, make("span", { className: "muted" }, interval(one)))));
  return [node("h3", "At the same batch size and number of devices"),
    table("at the same batch size", [head("batch size"), head("devices"), head("machine"), head(`times as fast as ${machine(results[0])}`)], rows)];
}

// What is not the same in all of these results: "facts" of the systems, or "hyperparameters".
function listDifferences(results, part) {
  const columns = new Map(results.filter((result) => details.has(result.id)).map((result) => [part === "facts" ? result.name : who(result), details.get(result.id)[part]]));
  const names = [...new Set([...columns.values()].flatMap(Object.keys))];
  const rows = names.filter((name) => new Set([...columns.values()].map((values) => values[name] ?? "")).size > 1)
    .map((name) => node("tr", make("th", { scope: "row" }, name), ...[...columns.values()].map((values) => node("td", values[name] ?? ""))));
  return rows.length ? [table(`differences of ${part}, ${results[0].group}`, [head("what differs"), ...[...columns.keys()].map((name) => head(name))], rows)] : [];
}

// Quality against time of all chosen results of a benchmark, a plot for each metric.
function overlay(results) {
  const known = results.filter((result) => details.has(result.id));
  const metrics = details.get(known[0]?.id)?.targets ?? [];
  const count = known.reduce((sum, result) => sum + details.get(result.id).runs.length, 0);
  return metrics.flatMap((target) => {
    const lines = known.flatMap((result) => {
      const runs = details.get(result.id).runs.map((run) => run.filter((point) => Number.isFinite(point[target.metric])));
      const sorted = runs.filter((run) => run.length).sort((a, b) => a.at(-1).minutes - b.at(-1).minutes);
      const drawn = count > RUNS_DRAWN_MAX ? sorted.slice(sorted.length >> 1, (sorted.length >> 1) + 1) : sorted;
      return drawn.map((run) => ({ result, points: run.map((point) => [point.minutes, point[target.metric]]) }));
    });
    if (!lines.some((line) => line.points.length > 1)) return [];
    return plotLines(`${target.metric} against time, ${target.better} is better`, lines, target.target, results);
  });
}

function plotLines(title, lines, goal, results) {
  const [width, height, left, right, top, bottom] = [480, 300, 70, 466, 12, 254];
  const span = (values) => [Math.min(...values), Math.max(...values)];
  const [, end] = span(lines.flatMap((line) => line.points.map((point) => point[0])).concat(0));
  const [low, high] = span(lines.flatMap((line) => line.points.map((point) => point[1])).concat(goal));
  const x = (value) => (left + ((right - left) * value) / (end || 1)).toFixed(1);
  const y = (value) => (bottom - ((bottom - top) * (value - low)) / (high - low || 1)).toFixed(1);
  const text = (content, properties) => drawing("text", properties, content);
  const shares = [0, 0.25, 0.5, 0.75, 1];
  const colour = (result) => `c${results.indexOf(result) % 8}`;
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title },
    drawing("g", { class: "grid" }, ...shares.map((share) => drawing("line", { x1: x(share * end), x2: x(share * end), y1: top, y2: bottom })),
      ...shares.map((share) => drawing("line", { x1: left, x2: right, y1: y(low + share * (high - low)), y2: y(low + share * (high - low)) }))),
    ...shares.map((share) => text(`${Number((share * end).toPrecision(2))}`, { x: x(share * end), y: bottom + 16, "text-anchor": "middle" })),
    ...shares.map((share) => text(`${Number((low + share * (high - low)).toPrecision(3))}`, { x: left - 6, y: Number(y(low + share * (high - low))) + 4, "text-anchor": "end" })),
    text("minutes since run_start", { class: "label", x: (left + right) / 2, y: height - 8, "text-anchor": "middle" }),
    drawing("line", { class: "guide", x1: left, x2: right, y1: y(goal), y2: y(goal) }),
    ...lines.map((line) => drawing("g", { class: colour(line.result), "data-of": line.result.id },
      drawing("polyline", { class: "solid", points: line.points.map((point) => `${x(point[0])},${y(point[1])}`).join(" ") }, drawing("title", {}, line.result.name)))));
  const seen = [...new Set(lines.map((line) => line.result))];
  const legend = seen.map((result) => {
    const item = make("li", { className: colour(result), tabIndex: 0 }, drawing("svg", { class: "sample", viewBox: "0 0 26 12", "aria-hidden": true },
      drawing("polyline", { class: "solid", points: "1,6 25,6" })), who(result));
    item.dataset.of = result.id;
    return item;
  });
  return make("figure", { className: "plot" }, make("figcaption", {}, node("b", title)), svg, make("ul", { className: "legend" }, ...legend));
}

const details = new Map();
let whenRead = () => {};

// Called by the files of results.
function addDetails(id, found) {
  details.set(id, found);
  whenRead();
}

function readDetails(results) {
  for (const result of results.filter((one) => !details.has(one.id))) {
    const wanted = address(result.id, ".js");
    if (![...document.scripts].some((script) => script.getAttribute("src") === wanted)) document.body.append(make("script", { src: wanted }));
  }
}

function showComparison() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = new Map(data.results.map((result) => [result.id, result]));
  const area = document.getElementById("comparison"), more = document.getElementById("differences"), found = document.getElementById("found");
  const form = document.querySelector("#compare form");
  document.getElementById("compare").hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  const act = (label, name, does) => {
    const made = make("button", { type: "button", ariaLabel: `${label} ${name}` }, label);
    made.addEventListener("click", does);
    return made;
  };
  act.chosen = () => state.getAll("r");
  act.choose = (ids) => {
    state.delete("r");
    for (const id of new Set(ids)) state.append("r", id);
    keep();
    show();
  };
  const told = (result) => `${result.group}, ${result.division}: ${result.name}, ${result.hardware}${result.batch ? `, batch size ${result.batch}` : ""}, ${result.score}`;

  function find() {
    const words = form.elements.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const groups = new Set(act.chosen().map((id) => byId.get(id)?.group));
    const matches = data.results.filter((result) => !act.chosen().includes(result.id)
      && words.every((word) => told(result).toLowerCase().includes(word)))
      .sort((a, b) => groups.has(b.group) - groups.has(a.group));
    form.querySelector("output").value = matches.length > 12 ? `12 of ${matches.length}` : "";
    found.replaceChildren(...matches.slice(0, 12).map((result) => node("li", node("span", told(result)),
      act("add", result.name, () => act.choose([...act.chosen(), result.id])))));
  }

  const list = () => act.chosen().map((id) => byId.get(id)).filter(Boolean);
  const group = () => list().reduce((groups, result) => groups.set(result.group, [...(groups.get(result.group) ?? []), result]), new Map());

  function show() {
    const groups = group(), missing = act.chosen().filter((id) => !byId.has(id));
    area.replaceChildren(...compareSystems(groups, data),
      ...[...groups].flatMap(([name, results]) => [...compareGroup(name, results, data, act), ...compareBatches(results, data)]),
      ...missing.map((id) => make("p", { className: "note" }, `${id}: there is no such result with a score; `,
        act("remove", id, () => act.choose(act.chosen().filter((other) => other !== id))))));
    showDifferences();
    readDetails(list());
    find();
    cue();
  }

  function showDifferences() {
    const facts = listDifferences(list(), "facts");
    const parts = [...group()].filter(([, results]) => results.length > 1).map(([name, results]) => {
      const plots = overlay(results);
      return [name, [...listDifferences(results, "hyperparameters"), ...(plots.length ? [make("div", { className: "panels" }, ...plots)] : [])]];
    });
    more.replaceChildren(...(facts.length ? [node("h2", "Differences between the systems"), ...facts] : []),
      ...parts.filter(([, shown]) => shown.length).flatMap(([name, shown]) => [node("h2", `Hyperparameters and quality: ${name}`), ...shown]));
  }

  whenRead = showDifferences;
  form.elements.find.addEventListener("input", find);
  show();
}

if (document.getElementById("compare")) showComparison();
