// The ranks side by side: which lack data, which fail, what is odd about one against the others.
const MOST_CELLS = 20000;
const CELL = 11;
const STATES = ["wrong", "odd", "incomplete", "lower", "right", "missing"];

// A cell tells its state by its shape too: full, from below, from the left, a dot, empty.
function rankShape(state, x, y) {
  const size = CELL - 3;
  const box = drawn("rect", { x, y, width: size, height: size, class: `cell ${state}` });
  const part = {
    wrong: { x, y, width: size, height: size, class: "mark-bad" },
    odd: { x, y: y + size / 2, width: size, height: size / 2, class: "mark-odd" },
    incomplete: { x, y, width: size / 2, height: size, class: "mark-calm" },
    lower: { x: x + 3, y: y + 3, width: size - 6, height: size - 6, class: "mark-low" },
  }[state];
  return part ? [box, drawn("rect", part)] : [box];
}

function rankStrip(ranks, width) {
  const known = new Map(ranks.lines.map((line) => [line.rank, line]));
  const size = Math.min(ranks.size, MOST_CELLS);
  const fitting = Math.floor((width - LEFT) / CELL);
  const across = Math.min(size, [100, 50, 20].find((number) => number <= fitting) ?? 10);
  const height = Math.ceil(size / across) * CELL + 2;
  const bad = ranks.lines.filter((line) => line.state === "wrong").length;
  const strip = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": t("strip_label", count(ranks.size), count(bad)) });
  for (let rank = 0; rank < size; rank += 1) {
    const line = known.get(rank) ?? { rank, state: "missing" };
    const [x, y] = [LEFT + (rank % across) * CELL, Math.floor(rank / across) * CELL + 1];
    if (rank % across === 0) strip.append(drawn("text", { x: LEFT - 8, y: y + CELL - 3, "text-anchor": "end" }, rank));
    const tip = line.state === "missing" ? t("rank_missing", rank) : t("rank_tip", rank, t(`state_of_${line.state}`), count(line.wrong), count(line.compared), count(line.births), line.last_step ?? "");
    strip.append(drawn("g", { class: "rank", "data-rank": rank, onclick: () => showOnly({ rank: String(rank) }) },
      drawn("title", {}, tip), ...rankShape(line.state, x, y)));
  }
  return strip;
}

// Where along the ranks an operator fails.
function failureStrip(failures, size) {
  const width = 120;
  const strip = drawn("svg", { class: "ranks-strip", viewBox: `0 0 ${width} 10`, "aria-hidden": "true" }, drawn("rect", { width, height: 10, class: "share-back" }));
  const mark = Math.max(2, width / size);
  for (const [rank] of failures.slice(0, 2000)) strip.append(drawn("rect", { x: Math.min(width - mark, (rank / size) * width), width: mark, height: 10, class: "mark-bad" }));
  return strip;
}

const share = (part, whole) => t("part_of", count(part), count(whole), whole ? `${Number(((100 * part) / whole).toPrecision(3))} %` : "");
const RATES = new Set(["wrong", "suspect", "lower_precision"]);
function oddValue(one, others) {
  const value = others ? one.others : one.value;
  if (RATES.has(one.kind)) return share(value, others ? one.others_of : one.of);
  if (one.kind === "time") return `${milliseconds(value)} ms`;
  if (one.kind === "births") return others ? t("times_each", figure(value)) : figure(value);
  return one.kind === "last_step" ? count(value) : bytes(value);
}

function oddTable(ranks) {
  const columns = [
    { key: "rank", cell: (one) => el("button", { type: "button", class: "link", onclick: () => showOnly({ rank: String(one.rank), operator: one.operator }) }, one.rank) },
    { key: "odd_kind", cell: (one) => t(`odd_${one.kind}`) },
    { key: "operator", cell: (one) => (one.operator ? data(shortened(one.operator, 160), "span", "cut mono") : one.operators ? counted("operators", one.operators) : "") },
    { key: "this_rank", number: true, cell: (one) => oddValue(one, false) },
    { key: "other_ranks", number: true, cell: (one) => oddValue(one, true) },
  ];
  return [
    el("h3", {}, t("odd_title")),
    ranks.odd.length ? smallTable(columns, ranks.odd, t("odd_title")) : el("p", {}, t("odd_none")),
    ranks.more_odd ? el("p", { class: "dim" }, t("odd_more", count(ranks.more_odd))) : "",
  ];
}

function ranksSection() {
  const { ranks } = SUMMARY;
  if (!ranks) return "";
  const lacks = ["missing", "empty", "unreadable", "damaged", "cut"].filter((name) => ranks[name]);
  const shapes = STATES.filter((state) => state === "missing" ? ranks.missing : ranks.lines.some((line) => line.state === state));
  return el("section", { id: "ranks" }, el("h2", {}, t("ranks")),
    el("p", {}, t("ranks_sentence", count(ranks.with_data), count(ranks.size))),
    lacks.length ? el("dl", { class: "facts" }, lacks.map((name) => fact(`lacks_${name}`, data(shortened(ranks[name], 600)), true))) : "",
    el("div", { class: "chart", "data-chart": "ranks" }, el("h3", {}, t("strip_title")), el("div", { class: "drawing" }),
      legend(shapes.map((state) => [drawn("g", {}, ...rankShape(state, 6, 0)), t(`state_of_${state}`)]))),
    ...oddTable(ranks));
}
