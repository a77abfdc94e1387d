// Ratios of two results with their intervals, as compliance/score/comparison.py computes them, from the levels
// of results.json. A ratio says how many times as fast one result is as another, everywhere.
"use strict";

const digits = (value) => (Math.abs(value - 1) < 0.005 ? value.toFixed(4) : value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1)
  : Math.round(value).toLocaleString("en-US"));

// The level of a result's own times beside a score.
const own = (level) => (level.own ? { ...level, ...level.own, basis: "own", points: [] } : level);

// How many times as fast the first of each pair is, as a geometric mean over the pairs (mean_ratio there).
// Two bases are compared by their own times; where one of two is charged, their own times must differ too.
function meanRatio(pairs, student) {
  const like = pairs.map((pair) => (pair[0].basis === pair[1].basis ? pair : pair.map(own)));
  const mixed = ([fast, slow]) => fast.charged !== slow.charged;
  let [middle, low, high] = measure(like, student);
  if (low !== null && like.some(mixed)) {
    const [, least, most] = measure(like.map((pair) => (mixed(pair) ? pair.map(own) : pair)), student);
    [low, high] = least === null ? [null, null] : [Math.min(low, least), Math.max(high, most)];
  }
  const [value, ...ends] = [middle, low, high].map((end) => (end === null ? null : Math.exp(end)));
  return { value, low: ends[0], high: ends[1], runs: pairs.flat().map((end) => end.n) };
}

// The mean logarithm of the ratios and the ends of its interval (_measure there).
function measure(pairs, student) {
  const sum = (values) => values.reduce((total, value) => total + value, 0), ends = pairs.flat();
  const middle = sum(pairs.map(([fast, slow]) => slow.log_mean - fast.log_mean)) / pairs.length;
  if (ends.some((end) => end.variance === null)) return [middle, null, null];
  const parts = ends.map((end) => [end.variance, end.degrees]).concat(pairs.flatMap(pointParts)), total = sum(parts.map(([part]) => part));
  const inverse = total > 0 ? sum(parts.map(([part, degrees]) => (part / total) ** 2 / degrees)) : 0;
  const isRounded = ends.some((end) => end.basis === "time") && inverse > 0; // trimmed times: Yuen's test
  const half = (quantile(student, isRounded ? 1 / Math.max(1, Math.floor(1 / inverse + 1e-9)) : inverse) * Math.sqrt(total)) / pairs.length;
  return [middle, middle - half, middle + half];
}

// The squared error of each reference point in the difference of two scores.
function pointParts([fast, slow]) {
  const shares = new Map();
  for (const [sign, level] of [[1, fast], [-1, slow]]) {
    for (const { point, share, variance, degrees } of level.points) shares.set(point, [(shares.get(point)?.[0] ?? 0) + sign * share, variance, degrees]);
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
const turned = ({ value, low, high, runs }) => ({ value: 1 / value, low: high && 1 / high, high: low && 1 / low, runs: [...runs].reverse() });

// How many times as fast the first of the rows that are seen is as each other, on the page of a benchmark.
function compareWithFirst() {
  const levels = JSON.parse(document.getElementById("levels").textContent);
  for (const table of tables.filter((one) => one.dataset.table === "")) {
    const seen = table.ranked.filter((row) => !row.hidden && levels.results[row.dataset.id]);
    for (const [place, row] of seen.entries()) {
      const found = meanRatio([[seen[0], row].map((one) => levels.results[one.dataset.id])], levels.student), cell = row.querySelector("td.behind");
      cell.dataset.value = found.value;
      cell.textContent = place === 0 ? "" : isDifference(found) ? `${digits(found.value)}× (${interval(found)})` : "no difference";
    }
  }
}

if (document.getElementById("levels")) {
  document.addEventListener("filtered", compareWithFirst);
  if (isFiltered()) compareWithFirst();
}
