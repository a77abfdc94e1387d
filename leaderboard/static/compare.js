// Compare results: ratios with intervals, over benchmarks, and what differs between the systems. Descriptions and
// curves are in a file of each result, which is read once the result is chosen.
"use strict";

const RUNS_DRAWN_MAX = 15; // lines in one plot; of more, the median run of each result
const FOUND_MAX = 6;
const SENTENCES_MAX = 4; // shown at once

function sentence(first, second, found) {
  const runs = found.runs.join(" and "), ratio = `ratio ${digits(found.value)}`;
  if (found.low === null) return `${first} against ${second}: ${ratio}; ${runs} runs are too few for an interval, no difference can be claimed.`;
  if (!isDifference(found)) return `No difference between ${first} and ${second} can be claimed from ${runs} runs: ${ratio}, 95% interval ${interval(found)}.`;
  return found.value < 1 ? sentence(second, first, turned(found))
    : `${first} is ${digits(found.value)} times as fast as ${second}, 95% interval ${interval(found)} (${runs} runs).`;
}

const node = (kind, ...children) => make(kind, {}, ...children);
const muted = (text) => make("span", { className: "muted" }, text);
const address = (id, end) => `results/${id.split("/").map(encodeURIComponent).join("/")}${end}`;
const who = (result) => (result.division === "closed" ? result.name : `${result.name}, ${result.division}`);

// A table whose first column says what each row is about; a cell is a text, a node or a list of them.
function table(name, headers, rows) {
  const cell = (content, place) => {
    const made = node(place ? "td" : "th", ...[content].flat());
    set(made, place ? { "data-label": headers[place] } : { scope: "row" });
    return made;
  };
  return make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: name }, make("table", { className: "plain cards" },
    node("thead", node("tr", ...headers.map((label) => make("th", { scope: "col" }, label)))),
    node("tbody", ...rows.map((cells) => node("tr", ...cells.map(cell))))));
}

// Which of two is so many times as fast as the other: the ratio is never below 1, so that it reads one way.
function tellRatio(found) {
  const larger = found.value < 1 ? turned(found) : found, first = found.value < 1 ? "the first" : "this";
  return [isDifference(found) ? `${first} is ${digits(larger.value)} times as fast` : "no difference", muted(` ${interval(larger)}`)];
}

// All results of a benchmark on one axis: to the right of the line those that are faster than the first.
function plotRatios(results, ratios, width) {
  const rows = results.map((result) => ({ result, ...ratios.get(result) })), y = (row) => row.result.name;
  const ends = rows.flatMap((row) => [row.value, row.low ?? 1, row.high ?? 1]), far = Math.max(1.1, ...ends, ...ends.map((end) => 1 / end)) * 1.05;
  const marks = ticks(1, far, width < 500 ? 3 : 5), text = { fill: "var(--text)", dy: 38 };
  return Plot.plot({
    width, height: 60 + 44 * rows.length, marginLeft: 8, marginRight: 8, marginTop: 8, marginBottom: 46, style: { fontSize: "12px" }, symbol: { type: "identity" },
    x: { type: "log", domain: [1 / far, far], axis: null },
    y: { type: "band", domain: rows.map(y), axis: null },
    marks: [...markAxis("X", d3.sort([...new Map(marks.flatMap((mark) => [[mark, `${mark}`], [1 / mark, `${mark}`]]))], ([value]) => value)), Plot.ruleX([1], { stroke: "var(--text)" }),
      Plot.ruleY(rows.filter((row) => row.low !== null), { x1: "low", x2: "high", y, dy: 8, stroke: (row) => colour(row.result.colour), strokeWidth: 5, strokeOpacity: 0.4 }),
      Plot.dot(rows, { x: "value", y, dy: 8, r: 5, symbol: (row) => SYMBOLS[row.result.shape], fill: (row) => colour(row.result.colour) }),
      Plot.text(rows, { y, frameAnchor: "left", text: y, dx: 4, dy: -9, stroke: "var(--page)", strokeWidth: 4, fill: "var(--text)" }),
      Plot.text(["← the first is so many times as fast"], { frameAnchor: "bottom-left", ...text }),
      Plot.text(["this one →"], { frameAnchor: "bottom-right", ...text })],
  });
}

// The results of a benchmark, the fastest first, compared with the first that was chosen: in words, drawn, in a table.
function compareGroup(name, results, find, act) {
  const [base, ...others] = results, area = make("div", { className: "ratio-chart" });
  const ratios = new Map(results.map((result) => [result, result === base ? { value: 1, low: null, high: null } : find(result, base)]));
  const sorted = d3.sort(results, (result) => result.level.log_mean);
  const said = others.map((other) => make("p", { className: "sentence" }, sentence(who(other), who(base), ratios.get(other))
    + (other.division === base.division ? "" : " They are of different divisions: not the same mathematics.")));
  if (others.length) requestAnimationFrame(() => area.replaceChildren(polish(plotRatios(sorted, ratios, Math.min(760, area.clientWidth || 340)), `ratios of speed, ${name}`)));
  const rows = sorted.map((result) => [
    [make("span", { className: `key c${result.colour % COLOURS}` }), make("a", { href: address(result.id, ".html") }, result.name)],
    result.division, result.hardware, result.framework, `${result.batch ?? ""}`, result.score,
    result === base ? muted("the first, compared with") : tellRatio(ratios.get(result)),
    make("div", { className: "buttons" }, ...(result === base ? [] : [act("compare with this", result.name, () => act.choose([result.id, ...act.chosen()]))]),
      act("remove", result.name, () => act.choose(act.chosen().filter((id) => id !== result.id))))]);
  return [node("h2", name), ...(others.length ? [] : [make("p", { className: "muted" }, "Add a second result of this benchmark and scale.")]),
    ...(said.length <= SENTENCES_MAX ? said : [node("details", node("summary", "in words"), ...said)]),
    area, table(`results compared, ${name}`, ["result", "division", "hardware", "framework", "batch size", "score", "ratio", "choose"], rows)];
}

// Benchmarks as rows, systems as columns: how many times as fast each is as the first, and the mean of that.
function compareSystems(groups, find, mean) {
  const [base, ...others] = new Set([...groups.values()].flat().map(who));
  const pairs = others.map((name) => [...groups.values()].map((results) => [name, base].map((one) => results.find((result) => who(result) === one))));
  const known = pairs.map((found) => found.filter((pair) => pair.every(Boolean)));
  if (!known.some((found) => found.length > 1)) return []; // nothing to average
  const rows = [...groups].map(([group, results], place) => [group, results.find((result) => who(result) === base)?.score ?? "",
    ...pairs.map((found) => (found[place].every(Boolean) ? tellRatio(find(...found[place])) : ""))]);
  rows.push(["geometric mean", "", ...known.map((found) => (found.length > 1 ? [...tellRatio(mean(found)), muted(` of ${found.length}`)] : ""))]);
  return [node("h2", "Over the benchmarks"), make("p", { className: "muted" }, `Each system against the first, ${base}, with 95% intervals. Each mean is over the benchmarks that both have.`),
    table("comparison over the benchmarks", ["benchmark", base, ...others], rows)];
}

// What is not the same in all of these results: "facts" of the systems, or "hyperparameters".
function listDifferences(results, part) {
  const columns = new Map(results.filter((result) => details.has(result.id)).map((result) => [part === "facts" ? result.name : who(result), details.get(result.id)[part]]));
  const names = [...new Set([...columns.values()].flatMap(Object.keys))];
  const rows = names.map((name) => [name, ...[...columns.values()].map((values) => values[name] ?? "")]).filter(([, ...values]) => new Set(values).size > 1);
  return rows.length ? [table(`differences of ${part}, ${results[0].group}`, ["what differs", ...columns.keys()], rows)] : [];
}

// Quality against time of all chosen results of a benchmark, a plot for each metric.
function overlay(results) {
  const known = results.filter((result) => details.has(result.id)).map((result, place) => ({ ...result, ...details.get(result.id), dash: DASHES[place % 4] }));
  const isMany = d3.sum(known, (result) => result.runs.length) > RUNS_DRAWN_MAX;
  const [unit, seconds] = d3.max(known, (result) => d3.max(result.runs, (run) => run.seconds.at(-1))) < 60 ? ["seconds", 1] : ["minutes", 60];
  const list = (run, name) => run.seconds.map((time, place) => [time / seconds, run.metrics[name][place]]).filter((point) => point.every(Number.isFinite));
  return (known[0]?.targets ?? []).flatMap(({ metric, better, target }) => {
    const series = known.flatMap((result) => {
      const lines = d3.sort(result.runs.map((run) => list(run, metric)).filter((points) => points.length), (points) => points.at(-1)[0]), { shape, dash, id: key } = result;
      const drawn = isMany ? lines.slice(lines.length >> 1, (lines.length >> 1) + 1) : lines, label = who(result), short = result.name.split("/").at(-1);
      return drawn.map((points) => ({ label, short, legend: label, colour: result.colour, shape, key, line: "solid", dash, mark: "none", points }));
    });
    const axes = { x: { label: `${unit} since run_start`, log: false, zero: true, ticks: [] }, y: { label: `${metric}, ${better} is better`, log: false, ticks: [] } };
    return series.some((one) => one.points.length > 1) ? [makeFigure({ ...axes, series, guides: [[target, `target ${target}`]] }, `${metric} against time`)] : [];
  });
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
    const src = address(result.id, ".js");
    if (![...document.scripts].some((script) => script.getAttribute("src") === src)) document.body.append(make("script", { src }));
  }
}

function showComparison() {
  const data = JSON.parse(document.getElementById("data").textContent), byId = new Map(data.results.map((result) => [result.id, result]));
  const mean = (pairs) => meanRatio(pairs.map((pair) => pair.map((result) => result.level)), data.student), find = (...pair) => mean([pair]);
  const [whole, area, more, found] = ["compare", "comparison", "differences", "found"].map((id) => document.getElementById(id)), form = whole.querySelector("form");
  whole.hidden = false;
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
  const list = () => act.chosen().map((id) => byId.get(id)).filter(Boolean), group = () => d3.group(list(), (result) => result.group);
  const tell = ({ group: task, division, name, hardware, batch, score }) => `${task}, ${division}: ${name}, ${hardware}${batch ? `, batch size ${batch}` : ""}, ${score}`;

  function seek() {
    const words = form.elements.find.value.toLowerCase().split(/\s+/).filter(Boolean), groups = group();
    const matches = data.results.filter((result) => !act.chosen().includes(result.id) && words.every((word) => tell(result).toLowerCase().includes(word)))
      .sort((a, b) => groups.has(b.group) - groups.has(a.group));
    form.querySelector("output").value = matches.length > FOUND_MAX ? `${FOUND_MAX} of ${matches.length}` : "";
    found.replaceChildren(...matches.slice(0, FOUND_MAX).map((result) => node("li", node("span", tell(result)),
      act("add", result.name, () => act.choose([...act.chosen(), result.id])))));
  }

  function show() {
    const groups = group(), missing = act.chosen().filter((id) => !byId.has(id));
    area.replaceChildren(...compareSystems(groups, find, mean), ...[...groups].flatMap(([name, results]) => compareGroup(name, results, find, act)),
      ...missing.map((id) => make("p", { className: "note" }, `${id}: there is no such result with a score; `,
        act("remove", id, () => act.choose(act.chosen().filter((other) => other !== id))))));
    whenRead();
    readDetails(list());
    seek();
  }

  whenRead = () => {
    const facts = listDifferences(list(), "facts");
    const parts = [...group()].filter(([, results]) => results.length > 1).flatMap(([name, results]) => {
      const plots = overlay(results), shown = [...listDifferences(results, "hyperparameters"), ...(plots.length ? [make("div", { className: "panels" }, ...plots)] : [])];
      return shown.length ? [node("h2", `Hyperparameters and quality: ${name}`), ...shown] : [];
    });
    more.replaceChildren(...(facts.length ? [node("h2", "Differences between the systems"), ...facts] : []), ...parts);
  };
  bind(form.elements.find, "find", seek);
  show();
}

if (document.getElementById("compare")) showComparison();
