// What a run costs: a price list that the reader writes, kept in the address; time against cost.
"use strict";

const prices = document.querySelector("form.prices");
const money = (value) => (value >= 100 ? Math.round(value).toLocaleString("en-US") : value.toPrecision(3));

function showCosts() {
  document.body.classList.toggle("priced", [...state.keys()].some((key) => key.startsWith("price ")));
  for (const area of all(".pareto")) {
    const table = area.parentElement.querySelector('table[data-table="more"]'), [unit, factor] = table.dataset.unit.split(" ");
    const series = rowsOf(table).flatMap((row) => {
      const { id, device, minutes, low, high, devices, colour, shape } = row.dataset, cell = row.querySelector("[data-cost]");
      const [cost, ...ends] = [minutes, low, high].map((time) => (time ? (Number.parseFloat(state.get(`price ${device}`)) * time * devices) / 60 : NaN));
      const hasEnds = ends.every(Number.isFinite);
      Object.assign(cell.dataset, { value: Number.isFinite(cost) ? cost : "" }, hasEnds && { low: ends[0], high: ends[1] });
      cell.replaceChildren(...(Number.isFinite(cost) ? [money(cost)] : []), ...(hasEnds ? [make("span", { className: "muted" }, ` ${ends.map(money).join("–")}`)] : []));
      const label = row.querySelector("a").textContent, look = { colour: Number(colour), shape, line: "none", mark: "dot" };
      return cost > 0 ? [{ label, short: label, key: id, legend: device, ...look, points: [[minutes * factor, cost]], ends: hasEnds ? [ends] : [] }] : [];
    });
    const axes = { x: { label: unit, ticks: [] }, y: { label: "cost of a run", ticks: [] }, front: "no other is faster and cheaper" };
    area.replaceChildren(...(series.length > 1 ? [makeFigure({ ...axes, series }, "Cost of a run against its time")] : []));
  }
}

if (prices) {
  prices.hidden = false;
  prices.addEventListener("submit", (event) => event.preventDefault());
  for (const field of prices.elements) bind(field, `price ${field.name}`, showCosts);
  showCosts();
}
