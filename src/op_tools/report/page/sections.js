// The answers, in the order in which a reader asks.

function headSection() {
  const names = ["answers", "operators", ...(SUMMARY.ranks ? ["ranks"] : []), "timeline", "time", "rows", ...Object.keys(SUMMARY.findings), "environment"];
  const targets = { rows: "all-rows" };
  return el("header", {},
    el("a", { class: "skip", href: "#all-rows" }, t("skip")),
    el("div", { class: "top" },
      el("div", {}, el("h1", {}, data(SUMMARY.title)), el("div", { class: "dim data" }, t("made", count(SUMMARY.rows), visible(SUMMARY.run), SUMMARY.made))),
      el("nav", { "aria-label": t("answers") }, el("ul", {}, names.map((name) => el("li", {}, el("a", { href: `#${targets[name] ?? name}` }, t(name === "operators" ? operatorsTitle() : name)))))),
      el("button", { type: "button", id: "language", lang: language === "en" ? "zh" : "en", onclick: switchLanguage }, t("other"))));
}

function answerSection() {
  const { state } = SUMMARY;
  const parts = [];
  if (SUMMARY.wrong) parts.push(t("wrong_values", count(SUMMARY.wrong), count(SUMMARY.compared), counted("operators", SUMMARY.wrong_operators)));
  if (SUMMARY.births) parts.push(t("births", counted("calls", SUMMARY.births)));
  const values = { wrong: [parts.join(language === "zh" ? "；" : "; ")], suspect: [counted("calls", SUMMARY.suspect)], lower: [count(SUMMARY.lower), count(SUMMARY.compared)], right: [counted("values", SUMMARY.compared)] };
  const kind = { wrong: "bad", suspect: "low", lower: "low", right: "good", finite: "good" }[state] ?? "";
  return el("section", { id: "answers" },
    el("div", { class: `answer ${kind}`, id: "answer" },
      el("p", { class: "sentence" }, t(`state_${state}`, ...(values[state] ?? []))),
      el("ul", { class: "counts" }, SUMMARY.counts.map(([verdict, number]) => el("li", {},
        el("button", { type: "button", class: `badge ${colour(verdict)}`, "data-verdict": verdict, onclick: () => showOnly({ verdict }) },
          el("b", {}, count(number)), ` ${word(verdict)}`))))),
    notices(),
    el("div", { class: "cards" }, firstCard("first"), firstCard("first_overflow")));
}

function notices() {
  const { environment } = SUMMARY;
  const texts = [];
  if (environment.dropped) texts.push(t(environment.damaged ? "damaged" : "dropped", count(environment.dropped)));
  if (environment.unreadable) texts.push(t("unread", count(environment.unreadable)));
  if (SUMMARY.left_out) texts.push(t(SUMMARY.selected ? "selected" : "left_out", count(SUMMARY.left_out)));
  if (environment.world_size === 1 && environment.processes > 1) texts.push(t("processes_note", environment.processes));
  return texts.map((text) => el("p", { class: "warning", role: "note" }, text));
}

function firstCard(name) {
  const first = SUMMARY[name];
  if (!first) return "";
  const facts = ["module", "step", "rank", "phase", "forward_name", "level", "side", "input", "output"];
  const figures = ["error_over_bound", "max_abs_diff", "max_relative_diff", "cosine_similarity"];
  const entries = [...facts, ...figures].map((key) => {
    const value = figures.includes(key) ? figure(first[key]) : first[key];
    if (value === null || value === "") return [];
    return fact(key, data(shortened(String(value), 300)), ["input", "output"].includes(key));
  });
  const line = first.reproduce ? command(first.reproduce, t("reproduce")) : command(captureLine(first.operator, first.level), t("not_captured"));
  return el("article", { class: "card", id: name.replace("_", "-"), "aria-label": t(name) },
    el("h2", {}, t(name)),
    el("p", { class: "what" }, data(shortened(first.operator, 300)), " ", data(first.value), " ", badge(first.verdict)),
    first.reason ? el("p", { class: "why" }, data(shortened(first.reason, 2000))) : "",
    first.call_site ? data(first.call_site, "code", "source") : "",
    el("dl", { class: "facts" }, entries), line,
    el("p", {}, el("a", { href: `#row-${first.row}`, class: "to-row", onclick: (event) => { event.preventDefault(); showRow(first.row); } }, t("show_row"))));
}

const operatorCell = (line) => el("button", { type: "button", class: "link", onclick: () => showOnly({ operator: line.operator }) },
  data(shortened(line.operator, 160), "span", "cut mono"));

// Where nothing is wrong, no operator is the worst.
const operatorsTitle = () => (SUMMARY.operators.some((line) => line.fail || line.lower_precision) ? "operators" : "operators_right");

function operatorsSection() {
  const columns = [
    { key: "operator", cell: operatorCell }, { key: "fail", number: true },
    ...(SUMMARY.ranks ? [
      { key: "failed_ranks", number: true, cell: (line) => t("ranks_of", count(line.failed_ranks), count(line.ranks)) },
      { key: "failed_on", cell: (line) => (line.fail ? [data(shortened(line.failed_on, 60)), failureStrip(line.failures, SUMMARY.ranks.size)] : "") },
    ] : []),
    { key: "lower_precision", number: true }, { key: "compared", number: true }, { key: "error_over_bound", number: true }, { key: "max_abs_diff", number: true },
    { key: "first_step", number: true },
  ];
  const title = t(operatorsTitle());
  return el("section", { id: "operators" }, el("h2", {}, title),
    SUMMARY.operators.length ? smallTable(columns, SUMMARY.operators, title) : el("p", {}, t("no_operators")));
}

function timelineSection() {
  const section = el("section", { id: "timeline" }, el("h2", {}, t("timeline")));
  if (!SUMMARY.steps.length && !SUMMARY.memory.length) return fill(section, {}, [el("p", {}, t("no_timeline"))]);
  if (SUMMARY.steps.length) {
    const bars = barsOf(SUMMARY.steps);
    const bad = SUMMARY.steps.some((step) => step.fail + step.nan > 0);
    const low = SUMMARY.steps.some((step) => step.lower_precision > 0);
    // The title says what the chart shows: that something is wrong only where something is.
    const titles = { ms: ["steps_ms", "steps_ms_wrong"], compared: ["steps_compared", "steps_compared_wrong"] }[bars] ?? ["steps_low", "steps_only"];
    section.append(el("div", { class: "chart", "data-chart": "steps" }, el("h3", {}, t(titles[bad ? 1 : 0])), el("div", { class: "drawing" }),
      legend([
        ...(bars ? [[drawn("rect", { x: 6, width: 10, height: 10, class: "bars" }), t(`legend_${bars}`)]] : []),
        ...(bad ? [[drawn("path", { d: diamond(11, 5, 5), class: "mark-bad" }), t("legend_bad")]] : []),
        ...(low ? [[drawn("circle", { cx: 11, cy: 5, r: 3.5, class: "mark-low" }), t("legend_low")]] : []),
      ])));
  }
  if (SUMMARY.memory.length) {
    const kinds = Object.keys(LINES).filter((kind) => SUMMARY.memory.some((line) => line.kind === kind));
    section.append(el("div", { class: "chart", "data-chart": "memory" }, el("h3", {}, t("memory_title")), el("div", { class: "drawing" }),
      legend(kinds.map((kind) => [drawn("path", { d: "M0 5L22 5", class: LINES[kind] }), t(kind)]))));
  }
  return section;
}

function drawCharts() {
  for (const box of document.querySelectorAll("[data-chart]")) {
    const drawing = box.querySelector(".drawing");
    const width = Math.max(240, drawing.clientWidth);
    const charts = { steps: () => stepsChart(SUMMARY.steps, width), memory: () => memoryChart(SUMMARY.memory, width), ranks: () => rankStrip(SUMMARY.ranks, width) };
    drawing.replaceChildren(charts[box.dataset.chart]());
  }
}

function timeSection() {
  const section = el("section", { id: "time" }, el("h2", {}, t("time")));
  if (!SUMMARY.time_operators.length) return fill(section, {}, [el("p", {}, t("no_time"))]);
  const ends = [
    { key: "calls", number: true },
    { key: "forward_ms", number: true, cell: (line) => milliseconds(line.forward_ms) },
    { key: "backward_ms", number: true, cell: (line) => milliseconds(line.backward_ms) },
    { key: "share", number: true, cell: (line) => [`${(line.share * 100).toFixed(1)} %`, shareBar(line.share)] },
  ];
  const site = { key: "call_site", cell: (line) => el("button", { type: "button", class: "link", title: visible(shortened(line.call_site, 500)), onclick: () => showOnly({ search: line.call_site, operator: line.operator }) },
    data(shortened(shortSite(line.call_site), 80), "span", "cut mono")) };
  return fill(section, {}, [
    el("p", { class: "dim" }, t("total_ms", milliseconds(SUMMARY.total_ms))),
    SUMMARY.environment.timed_with.length ? el("p", { class: "dim" }, t("timed_with", SUMMARY.environment.timed_with.join(", "))) : "",
    el("h3", {}, t("time_operators")),
    smallTable([{ key: "operator", cell: operatorCell }, ...ends], SUMMARY.time_operators, t("time_operators")),
    el("h3", {}, t("time_sites")),
    smallTable([site, { key: "operator", cell: operatorCell }, ...ends], SUMMARY.time_sites, t("time_sites")),
  ]);
}

function findingsSection(tool) {
  const { counts, lines } = SUMMARY.findings[tool];
  const columns = [
    { key: "operator", cell: (line) => el("button", { type: "button", class: "link", onclick: () => showRow(line.row) }, data(shortened(line.operator, 160), "span", "cut mono")) },
    { key: "verdict", cell: (line) => badge(line.verdict) },
    ...(lines.some((line) => line.side) ? [{ key: "side", cell: (line) => data(line.side) }] : []),
    { key: "phase", cell: (line) => data(line.phase) }, { key: "step", number: true }, { key: "rank", number: true },
    { key: "call_site", cell: (line) => data(shortened(shortSite(line.call_site), 80), "span", "cut mono") },
    { key: "reason", cell: (line) => data(shortened(line.reason || line.error_info || line.input, 240), "span", "cut wide-cut") },
  ];
  return el("section", { id: tool }, el("h2", {}, t(tool)),
    counts.length ? el("ul", { class: "counts" }, counts.map(([verdict, number]) => el("li", {}, el("span", { class: `badge ${colour(verdict)}` }, `${count(number)} ${word(verdict)}`)))) : "",
    el("p", {}, lines.length ? "" : t("nothing_found")),
    lines.length ? smallTable(columns, lines, t(tool)) : "",
    lines.length >= 20 ? el("p", { class: "dim" }, t("more_lines", lines.length)) : "");
}

function environmentSection() {
  const { environment } = SUMMARY;
  const list = (values) => (values.length ? values.join(", ") : t("not_recorded"));
  const settings = Object.entries(environment.settings).flatMap(([tool, values]) => Object.entries(values).map(([name, value]) => `${tool}.${name} = ${value}`));
  const entries = [
    ["torch", list(environment.torch)], ["devices", list(environment.devices)], ["hosts", list(environment.hosts)],
    ["ranks", `${environment.ranks} / ${environment.world_size}`], ["processes", environment.processes],
    ["captures", t(environment.captures ? "yes" : "no")], ["settings", settings.length ? settings.join("\n") : t("not_recorded")],
    ["python", environment.python],
  ];
  const columns = [
    { key: "tool", cell: (log) => data(log.tool) }, { key: "rank", number: true }, { key: "pid", number: true, cell: (log) => String(log.pid ?? "") },
    { key: "count", number: true, cell: (log) => count(log.rows) }, { key: "dropped_bytes", number: true, cell: (log) => count(log.dropped) },
    { key: "host", cell: (log) => data(log.host) }, { key: "started", cell: (log) => data(log.started) }, { key: "file", cell: (log) => data(shortened(log.file, 120), "span", "cut wide-cut mono") },
    ...(environment.unreadable ? [{ key: "problem", cell: (log) => data(shortened(log.problem, 300), "span", "cut wide-cut") }] : []),
  ];
  const lines = environment.logs.map((log) => ({ ...log, count: log.rows, dropped_bytes: log.dropped }));
  return el("section", { id: "environment" }, el("h2", {}, t("environment")),
    el("dl", { class: "facts" }, entries.map(([name, value]) => fact(name, data(value, "div", name === "settings" && settings.length ? "long mono" : ""), name === "settings" && settings.length))),
    el("h3", {}, t("logs")),
    environment.log_count > lines.length ? el("p", { class: "dim" }, t("logs_left_out", count(environment.log_count))) : "",
    lines.length ? smallTable(columns, lines, t("logs")) : "");
}
