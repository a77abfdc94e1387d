// What pages cannot do by themselves: sort, filter, fold, choose columns, highlight, keep that in the address,
// save what is shown. Everything is in the page already; nothing is fetched. The other scripts use
// what is defined here.
"use strict";

const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : ""); // else a place in the page
addEventListener("hashchange", () => { if (location.hash.includes("=")) location.reload(); });
const keep = () => history.replaceState(null, "", `#${state}`);
const put = (key, value) => { value ? state.set(key, value) : state.delete(key); keep(); };
const listed = (key) => (state.get(key) ?? "").split(",").filter(Boolean);
const enlist = (key, name, isIn) => put(key, [...listed(key).filter((one) => one !== name), ...(isIn ? [name] : [])].join(","));

const all = (selector, part = document) => [...part.querySelectorAll(selector)];
const make = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

// A field whose content is kept in the address.
function bind(field, key, does) {
  field.value = state.get(key) ?? "";
  field.addEventListener("input", () => { put(key, field.value); does(); });
}

// ---- tables of results, and rankings

const tables = all("table[data-table]"), rankings = all("table.ranking");
const controls = document.querySelector("form.controls:has(.columns)");
const isNarrow = matchMedia("screen and (max-width: 50rem)").matches;
const heads = (table) => [...table.tHead.rows[0].cells];
const rowsOf = (table) => (table.order ??= [...table.tBodies[0].rows]); // as they are sorted
const raw = (cell) => cell.dataset.value ?? cell.dataset.text ?? cell.textContent.trim();
const byWords = new Intl.Collator("en", { numeric: true }).compare;
for (const table of [...rankings, ...tables]) table.ranked = rowsOf(table).filter((row) => row.dataset.rank);

function sortAll(by) {
  const name = by.replace(/^-/, ""), sign = by === name ? 1 : -1;
  put("sort", by);
  for (const table of tables.filter((one) => heads(one).some((head) => head.dataset.key === name))) {
    for (const head of heads(table)) head.removeAttribute("aria-sort");
    const head = heads(table).find((one) => one.dataset.key === name);
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const texts = new Map(rowsOf(table).map((row) => [row, raw(row.cells[head.cellIndex])]));
    rowsOf(table).sort((one, other) => {
      const a = texts.get(one), b = texts.get(other);
      return a === "" || b === "" ? (a === "") - (b === "") : sign * (a - b || byWords(a, b)); // nothing stays last
    });
    fold(table);
  }
}

// Of a ranking and of a long table the first rows are seen, all of them on request and on paper: a browser takes a
// second to lay out thousands. Sorting, filters and what is saved act on all rows; only those that are seen move.
const ROWS_OF_RANKING = 5, ROWS_AT_ONCE = isNarrow ? 10 : 50, ROWS_MANY = isNarrow ? 10 : 100;

function fold(table) {
  const matching = rowsOf(table).filter((row) => !row.hidden), isRanking = rankings.includes(table);
  const most = isRanking ? ROWS_OF_RANKING : matching.length > ROWS_MANY ? ROWS_AT_ONCE : Infinity;
  const shown = offer(table, "open", matching.length > most, `show all ${matching.length}`) ? matching.slice(0, most) : matching;
  for (const row of matching) row.classList.add("later");
  for (const row of shown) row.classList.remove("later");
  table.tBodies[0].prepend(...shown);
  if (isRanking) table.closest("section").hidden = !shown.length;
  if (isRanking && shown.length) scaleRanking(table, shown);
}

// Offer a reader what is folded away, by a button below the table; the address says what has been opened.
function offer(table, kind, isMore, label) {
  const button = (table.closest(".scroll") ?? table).nextElementSibling.querySelector(`[data-${kind}]`);
  const isOffered = isMore && !listed(kind).includes(table.dataset.name);
  button.hidden = !isOffered;
  button.textContent = label;
  button.onclick = () => { enlist(kind, table.dataset.name, true); filter(); columns(); };
  return isOffered;
}

// Columns that a reader chose, without those at the end that have no room, until they are asked for.
function columns() {
  for (const table of tables) {
    const isOut = ({ dataset }) => ("seldom" in dataset ? !listed("show").includes(dataset.key) : listed("hide").includes(dataset.key));
    const out = heads(table).map(isOut), area = table.parentElement;
    const each = (does) => { for (const row of table.rows) [...row.cells].forEach(does); };
    each((cell, place) => { cell.hidden = out[place]; cell.classList.remove("folded"); });
    let excess = isNarrow ? 0 : area.scrollWidth - area.clientWidth, first = out.length;
    while (excess > 0 && first > FIXED_COLUMNS) excess -= heads(table)[first -= 1].offsetWidth;
    const more = out.slice(first).filter((isHidden) => !isHidden).length;
    if (offer(table, "wide", more > 0, `show ${more} more column${more > 1 ? "s" : ""}`)) each((cell, place) => cell.classList.toggle("folded", place >= first));
  }
}

const FIXED_COLUMNS = 3, FILTERS = ["q", "device", "least", "most", "availability"];
const isFiltered = () => FILTERS.some((name) => state.get(name));
let seenResults = new Map(); // by permalink, for the charts

// What a reader sees of a row: neither titles of drawings nor what is folded away.
function visible(row) {
  const copy = row.words ? null : row.cloneNode(true);
  for (const part of copy ? all("title, details", copy) : []) part.remove();
  return (row.words ??= copy.textContent.toLowerCase());
}

function filter() {
  const words = (state.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const least = Number(state.get("least") || 0), most = Number(state.get("most") || Infinity);
  const matches = (row) => ["device", "availability"].every((name) => (state.get(name) ?? row.dataset[name]) === row.dataset[name])
    && row.dataset.devices >= least && row.dataset.devices <= most && words.every((word) => visible(row).includes(word));
  seenResults = new Map();
  for (const table of [...rankings, ...tables]) {
    for (const row of rowsOf(table)) {
      row.hidden = !(table.dataset.table === "more" ? seenResults.get(row.dataset.id) : matches(row));
      seenResults.set(row.dataset.id, !row.hidden);
    }
    rank(table);
    fold(table);
  }
  const rows = tables.filter((table) => table.dataset.table === "").flatMap(rowsOf), shown = rows.filter((row) => !row.hidden);
  const devices = new Set(all("tr[data-device]:not([hidden])").map((row) => row.dataset.device));
  for (const item of all(".legend [data-device]")) item.hidden = !devices.has(item.dataset.device);
  document.body.classList.toggle("filtered", isFiltered());
  document.body.classList.toggle("empty", rows.length > 0 && !shown.length);
  if (controls) controls.querySelector("output").value = shown.length < rows.length ? `${shown.length} of ${rows.length} rows` : "";
  document.dispatchEvent(new Event("filtered"));
}

// Ranks among the rows that are seen. Which of them differ is what the test of the whole table says.
function rank(table) {
  const before = [0];
  for (const row of table.ranked) before.push(before.at(-1) + !row.hidden);
  for (const row of table.ranked.filter((one) => !one.hidden)) {
    const [value, best, worst] = row.dataset.rank.split(" ").map(Number);
    const cell = row.querySelector(".rank"), low = 1 + before[best - 1], high = before[worst];
    cell.dataset.value = 1 + before[value - 1];
    cell.firstChild.data = cell.dataset.value;
    cell.querySelector("small:not(.was)")?.replaceChildren(low < high ? `${low}–${high}` : "");
  }
}

// The axis of a ranking fits the rows that are seen.
function scaleRanking(table, rows) {
  const ends = rows.map((row) => row.dataset.ends.split(" ").map(Number)), [unit, factor] = table.dataset.unit.split(" ");
  const wider = Math.sqrt(Math.max(1, 1.5 / (Math.max(...ends.flat()) / Math.min(...ends.flat())))); // small differences look small
  const low = Math.min(...ends.flat()) / wider, high = Math.max(...ends.flat()) * wider;
  const place = (value) => 2 + (96 * Math.log(value / low)) / Math.log(high / low), shift = (x) => (x < 8 ? 0 : x > 92 ? 1 : 0.5); // of a label to the left
  let end = -Infinity; // of the last label, in percent as in ranking.py
  const marks = ticks(low * factor, high * factor, 5).map((value) => [place(value / factor), `${value.toLocaleString("en-US")}${unit.length < 4 ? ` ${unit}` : ""}`])
    .filter(([x, label]) => {
      const start = x - 4.6 * label.length * shift(x);
      return start > end + 1 && (end = start + 4.6 * label.length);
    });
  rows.forEach((row, number) => {
    const [x, x1, x2] = ends[number].map((one) => `${place(one).toFixed(2)}%`), lines = marks.map(([at]) => drawing("line", { class: "gridline", x1: `${at}%`, x2: `${at}%`, y1: 0, y2: 22 }));
    row.querySelector(".axis g").replaceChildren(...lines);
    set(row.querySelector(".interval"), { x1, x2 });
    set(row.querySelector(".axis svg svg"), { x });
  });
  table.tHead.querySelector("svg").replaceChildren(...marks.map(([x, label]) => drawing("text", { x: `${x}%`, y: 13, "text-anchor": ["start", "middle", "end"][2 * shift(x)] }, label)));
}

// ---- what is shown, as a file

// One row for each result, of all tables of the page; columns that a reader chose, with the ends of intervals.
function saved(kind) {
  const rows = new Map(), names = new Set(["table"]);
  for (const table of tables) {
    for (const row of rowsOf(table).filter((one) => !one.hidden)) {
      const found = rows.get(row.dataset.id) ?? { table: table.dataset.name };
      rows.set(row.dataset.id, found);
      for (const head of heads(table)) {
        const { key } = head.dataset, cell = row.cells[head.cellIndex], { value, text, low, high } = cell.dataset;
        if (cell.hidden || key === "pick" || key in found) continue;
        const parts = { [key]: (value === "" && text) || raw(cell), ...(low && { [`${key}_low`]: low, [`${key}_high`]: high }) };
        Object.assign(found, parts);
        Object.keys(parts).forEach((name) => names.add(name));
      }
    }
  }
  const parse = (text) => (text === "" ? null : Number.isFinite(Number(text)) ? Number(text) : text);
  const lines = [...rows.values()].map((row) => [...names].map((name) => row[name] ?? ""));
  return kind === "csv" ? writeCsv([[...names], ...lines])
    : JSON.stringify(lines.map((line) => Object.fromEntries([...names].map((name, place) => [name, parse(line[place])]))), null, 1);
}

function writeCsv(lines) {
  const inert = (text) => (/^[=+\-@]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text); // no formula
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return `${lines.map((line) => line.map((text) => quoted(inert(`${text}`))).join(",")).join("\n")}\n`;
}

function save(name, content) {
  const type = name.endsWith("csv") ? "text/csv" : "application/json";
  const link = make("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---- controls

// The permalinks of the results that a reader chose: of a row of the round, those of all of its cells.
const picked = () => all(".pick input:checked").flatMap((box) => (box.value !== "on" ? [box.value]
  : all("a.score", box.closest("tr")).map((link) => decodeURIComponent(link.getAttribute("href").match(/results\/(.*)\.html/)[1]))));

function showControls() {
  const fields = controls.elements, menu = controls.querySelector(".columns"), known = new Set(["pick"]);
  controls.closest("details").hidden = false;
  controls.closest("details").open = !isNarrow || isFiltered();
  controls.addEventListener("submit", (event) => event.preventDefault());
  for (const name of FILTERS) bind(fields[name], name, filter);
  for (const button of all("[data-clear]")) {
    button.addEventListener("click", () => {
      for (const name of FILTERS) { fields[name].value = ""; put(name, ""); }
      filter();
    });
  }
  document.addEventListener("click", (event) => { menu.open &&= menu.contains(event.target); });
  document.addEventListener("keydown", (event) => { menu.open &&= event.key !== "Escape"; });
  for (const head of tables.flatMap(heads)) {
    const button = head.querySelector("button"), { key } = head.dataset, label = (button ?? head).textContent;
    const best = ("more" in head.dataset ? "-" : "") + key, kind = "seldom" in head.dataset ? "show" : "hide";
    button?.addEventListener("click", () => { // the best first, then the other way
      const isUp = head.hasAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "ascending" : best === key;
      sortAll(isUp ? key : `-${key}`);
    });
    if (known.has(key)) continue;
    known.add(key);
    if (button) fields.sort.add(new Option(label, best)); // headers are not there on a narrow screen
    const choice = make("input", { type: "checkbox", checked: listed(kind).includes(key) === (kind === "show") });
    choice.addEventListener("change", () => { enlist(kind, key, choice.checked === (kind === "show")); columns(); });
    menu.querySelector("div").append(make("label", {}, choice, ` ${label}`));
  }
  bind(fields.sort, "sort", () => sortAll(fields.sort.value));
  for (const button of all("[data-save]", controls)) button.addEventListener("click", () => save(`${tables[0].dataset.name}.${button.dataset.save}`, saved(button.dataset.save)));
  const compare = controls.querySelector("[data-compare]"), count = () => { compare.disabled = picked().length < 2; };
  document.addEventListener("change", count);
  compare.addEventListener("click", () => {
    const address = new URLSearchParams(picked().map((id) => ["r", id]));
    location.href = `${document.querySelector("nav a[href$='compare.html']").getAttribute("href")}#${address}`;
  });
  count();
}

// ---- charts: what belongs to one result stands out together

// Results of one machine on several numbers of devices share a line.
const listResults = (part) => (part.dataset.of ?? part.dataset.id).split(" ");

function highlight(event) {
  const part = event.target.closest?.("[data-of], tr[data-id]");
  const ids = part && (event.type === "pointerover" || event.type === "focusin") ? listResults(part) : [];
  for (const other of all("[data-of]")) other.classList.toggle("lit", listResults(other).some((id) => ids.includes(id)));
  for (const figure of all("figure.plot")) figure.classList.toggle("lit", figure.querySelector(".lit") !== null);
}

function drawing(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  set(made, attributes);
  made.append(...children);
  return made;
}

function set(part, attributes) {
  for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
}

// Round values of a logarithmic axis, at most so many.
function ticks(low, high, most) {
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 }, (_, i) => Math.floor(Math.log10(low)) + i);
  const found = [[1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9], [1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]]
    .map((steps) => powers.flatMap((power) => steps.map((step) => Number((step * 10 ** power).toPrecision(3)))).filter((value) => value >= low && value <= high));
  const fit = found.find((values) => values.length <= most) ?? found.at(-1);
  return fit.filter((_, place) => place % Math.ceil(fit.length / most) === 0);
}

// ---- at once, and when the window changes

if (isNarrow) for (const part of all("details.wide-open")) part.open = false;
if (controls) showControls();
filter();
if (state.get("sort")) sortAll(state.get("sort"));
columns();
let width = innerWidth;
addEventListener("resize", () => { if (width !== (width = innerWidth)) columns(); });
addEventListener("beforeprint", () => { for (const table of tables) table.tBodies[0].append(...rowsOf(table)); });
for (const name of ["pointerover", "pointerleave", "focusin", "focusout"]) document.addEventListener(name, highlight);
