// Charts, drawn for the width they are shown in so that their letters keep their size.
const LEFT = 64;
const RIGHT = 12;

// About `wanted` round numbers from 0 to at least `top`.
function ticks(top, wanted = 4) {
  if (!(top > 0)) return [0];
  const raw = top / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const result = [];
  for (let value = 0; value < top + size * 0.999; value += size) result.push(Number(value.toPrecision(12)));
  return result;
}

function frame(width, height, label, marks, scale, words) {
  const chart = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  for (const mark of marks) {
    const y = Math.round(scale(mark)) + 0.5;
    chart.append(
      drawn("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "axis" }),
      drawn("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, words(mark)),
    );
  }
  return chart;
}

// What the bars of the steps are: times, or how many values were compared, or nothing.
const barsOf = (steps) => ["ms", "compared"].find((key) => steps.some((step) => step[key] > 0)) ?? "";

// Steps on the x-axis: a bar for the time or the values, a mark above it for what is wrong.
function stepsChart(steps, width) {
  const bars = barsOf(steps);
  const height = bars ? 210 : 76; // marks alone need no room for bars
  const [top, bottom] = [34, height - 30];
  const marks = bars ? ticks(Math.max(...steps.map((step) => step[bars]))) : [0];
  const most = marks[marks.length - 1] || 1;
  const scale = (value) => bottom - ((bottom - top) * value) / most;
  const bad = steps.filter((step) => step.fail + step.nan > 0).length;
  const unit = { ms: (value) => `${figure(value)} ms`, compared: figure }[bars] ?? (() => "");
  const chart = frame(width, height, t("steps_label", steps.length, bad), marks, scale, unit);
  const room = (width - LEFT - RIGHT) / steps.length;
  const bar = Math.max(1, Math.min(40, room * 0.72));
  steps.forEach((step, index) => {
    const middle = LEFT + room * (index + 0.5);
    const name = step.last > step.step ? `${step.step}-${step.last}` : step.step;
    const wrong = step.fail + step.nan;
    const tip = t(bars === "compared" ? "step_tip_compared" : "step_tip", name, figure(step[bars] ?? 0), wrong);
    const group = drawn("g", {}, drawn("title", {}, tip));
    const high = scale(step[bars] ?? 0);
    group.append(drawn("rect", { x: middle - bar / 2, width: bar, y: high, height: bottom - high, class: "bars" }));
    if (wrong) group.append(drawn("path", { d: diamond(middle, 14, 6), class: "mark-bad" }));
    if (step.lower_precision) group.append(drawn("circle", { cx: middle, cy: 27, r: 3.5, class: "mark-low" }));
    chart.append(group);
  });
  const every = Math.max(1, Math.ceil(40 / room));
  for (let index = 0; index < steps.length; index += every) {
    chart.append(drawn("text", { x: LEFT + room * (index + 0.5), y: height - 8, "text-anchor": "middle" }, steps[index].step));
  }
  chart.append(drawn("text", { x: LEFT - 8, y: height - 8, "text-anchor": "end" }, t("step")));
  return chart;
}

const diamond = (x, y, size) => `M${x} ${y - size}L${x + size} ${y}L${x} ${y + size}L${x - size} ${y}Z`;

const LINES = { host_rss_bytes: "line", device_allocated_bytes: "line device", device_reserved_bytes: "line reserved" };

function memoryChart(series, width) {
  const height = 190;
  const [top, bottom] = [12, height - 30];
  const all = series.flatMap((line) => line.points);
  const marks = ticks(Math.max(...all.map((point) => point[1]), 1));
  const times = ticks(Math.max(...all.map((point) => point[0]), 1e-3), Math.max(2, Math.floor(width / 130)));
  const last = times[times.length - 1];
  const scale = (value) => bottom - ((bottom - top) * value) / marks[marks.length - 1];
  const across = (time) => LEFT + ((width - LEFT - RIGHT) * time) / last;
  const peak = Math.max(...series.filter((line) => line.kind === "host_rss_bytes").flatMap((line) => line.points.map((p) => p[1])), 0);
  const chart = frame(width, height, t("memory_label", bytes(peak)), marks, scale, bytes);
  for (const time of times) {
    const anchor = time === last ? "end" : "middle";
    chart.append(drawn("text", { x: across(time), y: height - 8, "text-anchor": anchor }, `${time} ${t("seconds")}`));
  }
  for (const line of series) {
    const path = line.points.map(([time, value], index) => `${index ? "L" : "M"}${across(time).toFixed(1)} ${scale(value).toFixed(1)}`).join("");
    const who = series.some((other) => other.pid !== line.pid) ? `, rank ${line.rank ?? 0} (pid ${line.pid})` : "";
    chart.append(drawn("path", { d: path, class: LINES[line.kind] }, drawn("title", {}, t(line.kind) + who)));
  }
  return chart;
}

function legend(entries) {
  return el("ul", { class: "legend" }, entries.map(([shape, words]) =>
    el("li", {}, drawn("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, shape), words)));
}

function shareBar(share) {
  return drawn("svg", { class: "share", viewBox: "0 0 70 8", "aria-hidden": "true" },
    drawn("rect", { width: 70, height: 8, rx: 2, class: "share-back" }),
    drawn("rect", { width: Math.max(1, 70 * share), height: 8, rx: 2, class: "share-full" }));
}
