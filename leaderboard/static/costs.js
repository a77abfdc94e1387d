// What a run costs: a price list that the reader writes, kept in the address; time against cost.
"use strict";

const prices = [...document.querySelectorAll("form.prices")];
const byDevice = (name) => Number.parseFloat(state.get(`price ${name}`) ?? "");
const money = (value) => (value >= 100 ? Math.round(value).toLocaleString("en-US") : value.toPrecision(3));

function showCosts() {
  for (const cell of document.querySelectorAll("td[data-cost]")) {
    const { device, minutes, devices } = cell.parentElement.dataset;
    const cost = minutes === "" ? NaN : (byDevice(device) * minutes * devices) / 60;
    cell.dataset.value = Number.isFinite(cost) ? cost : "";
    cell.textContent = Number.isFinite(cost) ? money(cost) : "";
  }
  for (const area of document.querySelectorAll(".pareto")) {
    const rows = [...area.parentElement.querySelectorAll('table[data-table="more"] tbody tr')];
    const points = rows.map((row) => ({
      id: row.dataset.id, name: row.querySelector("a").textContent, minutes: Number(row.dataset.minutes),
      cost: Number(row.querySelector("[data-cost]").dataset.value),
    })).filter((point) => point.minutes > 0 && point.cost > 0);
    area.replaceChildren(...(points.length > 1 ? [plotCosts(points)] : []));
  }
  filter();
}

// The points that no other beats in both, from the fastest to the cheapest.
function front(points) {
  const found = [];
  for (const point of [...points].sort((a, b) => a.minutes - b.minutes || a.cost - b.cost)) {
    if (!found.length || point.cost < found.at(-1).cost) found.push(point);
  }
  return found;
}

function plotCosts(points) {
  const [width, height, left, right, top, bottom] = [480, 300, 62, 376, 12, 254];
  const scale = (values, first, last) => {
    const low = Math.log(Math.min(...values)) - 0.1, high = Math.log(Math.max(...values)) + 0.1;
    const place = (value) => first + ((last - first) * (Math.log(value) - low)) / (high - low);
    return { place, ticks: ticks(Math.exp(low), Math.exp(high)) };
  };
  const x = scale(points.map((point) => point.minutes), left, right), y = scale(points.map((point) => point.cost), bottom, top);
  const text = (content, properties) => drawing("text", properties, `${content}`);
  const best = front(points);
  const stairs = best.flatMap((point, i) => [...(i ? [`${x.place(point.minutes)},${y.place(best[i - 1].cost)}`] : []), `${x.place(point.minutes)},${y.place(point.cost)}`]);
  const title = "Cost of a run against its time";
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}; the numbers are in the table above` },
    drawing("g", { class: "grid" }, ...x.ticks.map((tick) => drawing("line", { x1: x.place(tick), x2: x.place(tick), y1: top, y2: bottom })),
      ...y.ticks.map((tick) => drawing("line", { x1: left, x2: right, y1: y.place(tick), y2: y.place(tick) }))),
    ...x.ticks.map((tick) => text(tick, { x: x.place(tick), y: bottom + 16, "text-anchor": "middle" })),
    ...y.ticks.map((tick) => text(tick.toLocaleString("en-US"), { x: left - 6, y: y.place(tick) + 4, "text-anchor": "end" })),
    text("minutes, log scale", { class: "label", x: (left + right) / 2, y: height - 8, "text-anchor": "middle" }),
    text("cost of a run, log scale", { class: "label", transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }),
    drawing("g", { class: "c8" }, drawing("polyline", { class: "dashed", points: stairs.join(" ") })),
    ...points.map((point) => drawing("g", { class: best.includes(point) ? "c0" : "c8", "data-of": point.id },
      drawing("g", { class: "mark" }, drawing("circle", { cx: x.place(point.minutes), cy: y.place(point.cost), r: 4 },
        drawing("title", {}, `${point.name}: ${money(point.minutes)} minutes, ${money(point.cost)}`))),
      ...(best.includes(point) && best.length <= 8 ? [text(point.name.slice(0, 18), { class: "direct over", x: x.place(point.minutes) + 7, y: y.place(point.cost) - 5 })] : []))));
  return make("figure", { className: "plot" }, make("figcaption", {}, make("b", {}, title)), svg,
    make("p", { className: "muted" }, "The dotted line joins the results that no other beats in both time and cost."));
}

for (const form of prices) {
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const field of form.elements) {
    field.value = state.get(`price ${field.name}`) ?? "";
    field.addEventListener("input", () => {
      put(`price ${field.name}`, field.value);
      for (const other of prices) for (const one of other.elements) if (one !== field && one.name === field.name) one.value = field.value;
      showCosts();
    });
  }
}
if (prices.length) showCosts();
