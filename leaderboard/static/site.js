// What pages cannot do by themselves: sort, filter, choose columns, highlight, keep that in the address,
// save what is shown. Everything is in the page already; nothing is fetched. The other scripts use
// what is defined here.
"use strict";

const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : ""); // else a place in the page
addEventListener("hashchange", () => { if (location.hash.includes("=")) location.reload(); });
const keep = () => history.replaceState(null, "", `#${state}`);
const make = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const put = (key, value) => { value ? state.set(key, value) : state.delete(key); keep(); };

// ---- tables

const tables = [...document.querySelectorAll("table[data-table]")];
const controls = document.querySelector("form.controls:has(.columns)");
const heads = (table) => [...table.tHead.rows[0].cells];
const key = (head) => head.dataset.key;
const rowsOf = (table) => table.order ?? [...table.tBodies[0].rows]; // as they are sorted
const raw = (cell) => cell.dataset.value ?? cell.dataset.text ?? cell.textContent.trim();

const byWords = new Intl.Collator("en", { numeric: true }).compare;

function sort(table, name, turned) {
  const column = heads(table).findIndex((head) => key(head) === name);
  if (column < 0) return;
  for (const head of heads(table)) head.removeAttribute("aria-sort");
  heads(table)[column].setAttribute("aria-sort", turned ? "descending" : "ascending");
  const compare = (a, b) => {
    if (a.text === "" || b.text === "") return (a.text === "") - (b.text === ""); // nothing stays last
    const order = Number.isNaN(a.number) || Number.isNaN(b.number) ? byWords(a.text, b.text) : a.number - b.number;
    return turned ? -order : order;
  };
  const rows = rowsOf(table).map((row) => {
    const text = raw(row.cells[column]);
    return { text, number: Number(text), row };
  });
  table.order = rows.sort(compare).map((one) => one.row);
  turnPages(table);
}

// Of a long table the first rows that match are laid out, all of them on request and on paper: a browser takes
// a second for thousands. Sorting, filters and what is saved act on all rows; only those that are seen move.
const ROWS_AT_ONCE = 50, ROWS_MANY = 100, ROWS_OF_PHONE = 10;
const isNarrow = matchMedia("(max-width: 50rem)").matches;

function turnPages(table) {
  const matching = rowsOf(table).filter((row) => !row.hidden);
  const shown = state.get("rows") === "all" || matching.length <= (isNarrow ? ROWS_OF_PHONE : ROWS_MANY) ? matching.length : Math.min(ROWS_AT_ONCE, isNarrow ? ROWS_OF_PHONE : Infinity);
  matching.forEach((row, place) => row.classList.toggle("later", place >= shown));
  if (shown < matching.length) table.tBodies[0].prepend(...matching.slice(0, shown));
  else putInOrder(table);
  const area = table.closest(".scroll");
  let more = table.pageLine;
  if (!more) {
    if (shown === matching.length) return;
    const button = make("button", { type: "button" });
    button.addEventListener("click", () => { put("rows", "all"); tables.forEach(turnPages); area.focus(); });
    more = table.pageLine = make("p", { className: "pages" }, make("span", {}), button);
    (area.nextElementSibling?.matches(".cue") ? area.nextElementSibling : area).after(more);
  }
  more.hidden = shown === matching.length;
  more.firstChild.textContent = `The first ${shown} of ${matching.length} rows are shown. `;
  more.lastChild.textContent = `show all ${matching.length}`;
}

function putInOrder(table) {
  if (table.order) table.tBodies[0].append(...table.order);
}

function sortAll(by) {
  put("sort", by);
  for (const table of tables) sort(table, by.replace(/^-/, ""), by.startsWith("-"));
}

// What a reader sees of a row: neither titles of drawings nor what is folded away.
const seenWords = new Map();
function visible(row) {
  if (!seenWords.has(row)) {
    const copy = row.cloneNode(true);
    for (const part of copy.querySelectorAll("title, details")) part.remove();
    seenWords.set(row, copy.textContent.toLowerCase());
  }
  return seenWords.get(row);
}

const rankings = [...document.querySelectorAll("table.ranking")];
const FILTERS = ["q", "device", "least", "most", "availability"];
const ROWS_FOLDED = 5; // rows of a ranking that are seen at once
let seenResults = new Map(); // by permalink, for the charts
const isFiltered = () => FILTERS.some((name) => state.get(name));
const rowsIn = (table) => [...table.tBodies].flatMap((body) => [...body.rows]);

function filter() {
  const words = (state.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = ["device", "availability"].filter((name) => state.get(name));
  const least = Number(state.get("least") || 0), most = Number(state.get("most") || Infinity);
  const matches = (row) => words.every((word) => visible(row).includes(word))
    && chosen.every((name) => row.dataset[name] === state.get(name))
    && row.dataset.devices >= least && row.dataset.devices <= most;
  let shown = 0, all = 0;
  seenResults = new Map();
  for (const table of [...rankings, ...tables]) {
    for (const row of rowsIn(table)) {
      row.hidden = !(table.dataset.table === "more" ? seenResults.get(row.dataset.id) ?? matches(row) : matches(row));
      if (row.dataset.id) seenResults.set(row.dataset.id, !row.hidden);
      if (table.dataset.table === "") { shown += !row.hidden; all += 1; }
    }
  }
  for (const table of [...rankings, ...tables]) rank(table);
  rankings.forEach(scaleRanking);
  tables.forEach(turnPages);
  const devices = new Set([...document.querySelectorAll("tr[data-device]:not([hidden])")].map((row) => row.dataset.device));
  for (const item of document.querySelectorAll(".legend [data-device]")) item.hidden = !devices.has(item.dataset.device);
  for (const lead of document.querySelectorAll(".lead-of")) lead.hidden = isFiltered();
  document.querySelector("[data-clear]").hidden = !isFiltered();
  document.querySelector(".approximate").hidden = !isFiltered();
  document.querySelector(".nothing").hidden = shown > 0 || all === 0;
  controls.querySelector("output").value = shown < all ? `${shown} of ${all} rows` : "";
  document.dispatchEvent(new Event("filtered"));
}

// Ranks among the rows that are seen. Which of them differ is what the test of the whole table says.
function rank(table) {
  table.ranked ??= rowsIn(table).filter((row) => row.dataset.rank);
  const before = [0];
  for (const row of table.ranked) before.push(before.at(-1) + !row.hidden);
  for (const row of table.ranked.filter((one) => !one.hidden)) {
    const [value, best, worst] = row.dataset.rank.split(" ").map(Number);
    const cell = row.querySelector(".rank"), low = 1 + before[best - 1], high = before[worst];
    cell.dataset.value = 1 + before[value - 1];
    cell.replaceChildren(cell.dataset.value, ...(low < high ? [make("small", {}, `${low}–${high}`)] : []));
  }
}

// The axis of a ranking fits the rows that are seen, the first of them or all on request.
function scaleRanking(table) {
  const seen = rowsIn(table).filter((row) => !row.hidden), more = table.parentElement.querySelector("[data-unfold]");
  table.closest("section").hidden = !seen.length;
  rowsIn(table).forEach((row) => row.classList.toggle("later", !table.dataset.open && seen.indexOf(row) >= ROWS_FOLDED));
  if (more) {
    more.hidden = Boolean(table.dataset.open) || seen.length <= ROWS_FOLDED;
    more.textContent = `show ${seen.length - ROWS_FOLDED} more`;
  }
  if (!seen.length || !(isFiltered() || table.scaled)) return;
  table.scaled = true;
  const ends = seen.map((row) => row.dataset.ends.split(" ").map(Number)), [unit, factor] = table.dataset.unit.split(" ");
  let low = Math.log(Math.min(...ends.flat())), high = Math.log(Math.max(...ends.flat()));
  const wider = Math.max(0, (Math.log(1.5) - (high - low)) / 2);
  [low, high] = [low - wider, high + wider];
  const place = (value) => `${(2 + (96 * (Math.log(value) - low)) / (high - low)).toFixed(2)}%`;
  let end = -Infinity; // of the last label, in percent as in ranking.py
  const marks = ticks(Math.exp(low) * factor, Math.exp(high) * factor, 5).map((value) => [`${value.toLocaleString("en-US")}${unit.length < 4 ? ` ${unit}` : ""}`, place(value / factor)])
    .filter(([label, x]) => {
      const start = parseFloat(x) - 4.6 * label.length * (parseFloat(x) < 8 ? 0 : parseFloat(x) > 92 ? 1 : 0.5);
      return start > end + 1 && (end = start + 4.6 * label.length);
    });
  seen.forEach((row, number) => {
    const svg = row.querySelector(".axis svg"), line = svg.querySelector(".interval");
    svg.querySelector("g").replaceChildren(...marks.map(([, x]) => drawing("line", { class: "gridline", x1: x, x2: x, y1: 0, y2: 22 })));
    line.setAttribute("x1", place(ends[number][1]));
    line.setAttribute("x2", place(ends[number][2]));
    svg.querySelector("svg").setAttribute("x", place(ends[number][0]));
  });
  table.tHead.querySelector("svg").replaceChildren(...marks.map(([label, x]) => drawing("text", { x, y: 13,
    "text-anchor": parseFloat(x) < 8 ? "start" : parseFloat(x) > 92 ? "end" : "middle" }, label)));
}

// Columns that a reader put away, and those that only a few ask for, until they do.
const listed = (name) => (state.get(name) ?? "").split(",").filter(Boolean);
function hiddenColumns() {
  const seldom = tables.flatMap(heads).filter((head) => "seldom" in head.dataset).map(key);
  return new Set([...listed("hide"), ...seldom.filter((name) => !listed("show").includes(name))]);
}

function columns() {
  const hidden = hiddenColumns();
  for (const table of tables) {
    const out = heads(table).map((head) => hidden.has(key(head)));
    for (const row of [table.tHead.rows[0], ...table.tBodies[0].rows]) {
      [...row.cells].forEach((cell, number) => { cell.hidden = out[number]; });
    }
  }
}

// One row for each result, of all tables of the page; columns that are shown, with the ends of intervals.
function saved(kind) {
  const rows = new Map(), names = new Set(["table"]);
  for (const table of tables) {
    const keys = heads(table).map(key);
    for (const row of rowsOf(table).filter((one) => !one.hidden)) {
      const id = row.dataset.id ?? row.cells[1].textContent, found = rows.get(id) ?? { table: table.dataset.name };
      [...row.cells].forEach((cell, number) => {
        if (cell.hidden || keys[number] === "pick" || keys[number] in found) return;
        found[keys[number]] = (cell.dataset.value === "" && cell.dataset.text) || raw(cell);
        names.add(keys[number]);
        for (const [end, value] of [["low", cell.dataset.low], ["high", cell.dataset.high]]) {
          if (value === undefined) continue;
          found[`${keys[number]}_${end}`] = value;
          names.add(`${keys[number]}_${end}`);
        }
      });
      rows.set(id, found);
    }
  }
  const list = [...rows.values()].map((row) => [...names].map((name) => row[name] ?? ""));
  return kind === "csv" ? writeCsv([[...names], ...list])
    : JSON.stringify(list.map((row) => Object.fromEntries([...names].map((name, i) => [name, parse(row[i])]))), null, 1);
}

const parse = (text) => (text === "" ? null : Number.isFinite(Number(text)) ? Number(text) : text);

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

function picked() {
  return [...document.querySelectorAll(".pick input:checked")].flatMap((box) => (box.value !== "on" ? [box.value]
    : [...box.closest("tr").querySelectorAll("a.score")].map((link) => decodeURIComponent(link.getAttribute("href").match(/results\/(.*)\.html/)[1]))));
}

function showTables() {
  const box = controls.closest("details");
  box.hidden = false;
  box.open = !isNarrow || isFiltered();
  for (const part of document.querySelectorAll("details.wide-open")) part.open = !isNarrow;
  for (const button of document.querySelectorAll("[data-unfold]")) {
    button.addEventListener("click", () => { const table = button.closest("section").querySelector("table"); table.dataset.open = "yes"; scaleRanking(table); });
  }
  for (const folded of document.querySelectorAll(".folded")) folded.hidden = false;
  for (const button of document.querySelectorAll("[data-clear], .nothing button")) {
    button.addEventListener("click", () => {
      for (const name of FILTERS) { controls.elements[name].value = ""; state.delete(name); }
      keep();
      filter();
    });
  }
  for (const name of FILTERS) {
    const field = controls.elements[name];
    field.value = state.get(name) ?? "";
    field.addEventListener("input", () => { put(name, field.value); filter(); });
  }
  const sorter = controls.elements.sort; // headers are not there on a narrow screen
  sorter.addEventListener("input", () => sortAll(sorter.value));
  controls.addEventListener("submit", (event) => event.preventDefault());
  const menu = controls.querySelector(".columns"), close = () => { menu.open = false; };
  document.addEventListener("click", (event) => { if (!menu.contains(event.target)) close(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  const choices = menu.querySelector("div"), seen = new Set(), hidden = hiddenColumns();
  for (const head of tables.flatMap(heads).filter((head) => key(head) !== "pick")) {
    if (seen.has(key(head))) continue;
    seen.add(key(head));
    const choice = make("input", { type: "checkbox", checked: !hidden.has(key(head)) });
    choice.addEventListener("change", () => {
      const kind = "seldom" in head.dataset ? "show" : "hide", others = listed(kind).filter((name) => name !== key(head));
      put(kind, (choice.checked === (kind === "show") ? [...others, key(head)] : others).join(","));
      columns();
    });
    choices.append(make("label", {}, choice, ` ${head.querySelector("button")?.textContent ?? head.textContent}`));
  }
  for (const table of tables) {
    for (const head of heads(table)) {
      const button = head.querySelector("button");
      if (!button) continue;
      const best = ("more" in head.dataset ? "-" : "") + key(head); // the best first
      if (![...sorter.options].some((option) => option.value === best)) sorter.add(new Option(button.textContent, best));
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const turned = before ? before === "ascending" : best.startsWith("-");
        sortAll((turned ? "-" : "") + key(head));
      });
    }
  }
  for (const button of controls.querySelectorAll("[data-save]")) button.addEventListener("click", () => save(`${tables[0].dataset.name}.${button.dataset.save}`, saved(button.dataset.save)));
  const compare = controls.querySelector("[data-compare]");
  const count = () => { compare.disabled = picked().length < 2; };
  document.addEventListener("change", count);
  compare.addEventListener("click", () => {
    const address = new URLSearchParams(picked().map((id) => ["r", id]));
    location.href = `${document.querySelector("nav a[href$='compare.html']").getAttribute("href")}#${address}`;
  });
  sorter.value = state.get("sort") ?? "";
  if (state.get("sort")) sortAll(state.get("sort"));
  columns();
  filter();
  count();
}

// ---- plots: what belongs to one result stands out together

// Results of one machine on several numbers of devices share a line.
const listResults = (part) => (part.dataset.of ?? part.dataset.id).split(" ");

function highlight() {
  const light = (event) => {
    const part = event.target.closest?.("[data-of], tr[data-id]");
    const ids = part && (event.type === "pointerover" || event.type === "focusin") ? listResults(part) : [];
    for (const other of document.querySelectorAll("[data-of]")) other.classList.toggle("lit", listResults(other).some((id) => ids.includes(id)));
    for (const figure of document.querySelectorAll("figure.plot")) figure.classList.toggle("lit", figure.querySelector(".lit") !== null);
  };
  for (const name of ["pointerover", "pointerleave", "focusin", "focusout"]) document.addEventListener(name, light);
}

// A line of text wherever a table is wider than its place.
function cue() {
  for (const area of document.querySelectorAll(".scroll")) {
    const wide = area.scrollWidth > area.clientWidth + 1;
    if (wide && !area.nextElementSibling?.matches(".cue")) area.after(make("p", { className: "cue" }, "scroll sideways for more columns →"));
    if (!wide && area.nextElementSibling?.matches(".cue")) area.nextElementSibling.remove();
  }
}

function drawing(name, properties, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [property, value] of Object.entries(properties)) made.setAttribute(property, value);
  made.append(...children);
  return made;
}

// Round values of a logarithmic axis, at most so many.
function ticks(low, high, most) {
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 }, (_, i) => Math.floor(Math.log10(low)) + i);
  const found = [[1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9], [1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]]
    .map((steps) => powers.flatMap((power) => steps.map((step) => Number((step * 10 ** power).toPrecision(3)))).filter((value) => value >= low && value <= high));
  const fit = found.find((values) => values.length <= most) ?? found.at(-1);
  return fit.filter((_, place) => place % Math.ceil(fit.length / most) === 0);
}

if (tables.length && controls) showTables();
addEventListener("beforeprint", () => tables.forEach(putInOrder));
highlight();
cue();
addEventListener("resize", cue);
