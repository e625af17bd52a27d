// The table of all rows: filters, sorting, pages, details, all by keyboard too.
const PAGE = 100;
const COLUMNS = [
  { key: "operator" }, { key: "value" }, { key: "verdict" }, { key: "step", number: true }, { key: "rank", number: true },
  { key: "phase" }, { key: "level" }, { key: "error_over_bound", number: true }, { key: "max_abs_diff", number: true },
  { key: "time_ms", number: true }, { key: "call_site" }, { key: "module" }, { key: "side" }, { key: "tool" },
];
const EMPTY = { operator: "", module: "", verdict: "", phase: "", level: "", tool: "", rank: "", step: "", search: "" };
// In this order in the details; what else a row has comes behind.
const DETAILS = [
  "operator", "value", "verdict", "reason", "call_site", "module", "phase", "forward_name", "level", "step", "rank",
  "error_over_bound", "max_abs_diff", "max_relative_diff", "cosine_similarity", "allclose", "atol", "rtol",
  "forward_elasped", "backward_elasped", "kind", "status", "side", "error_info", "input", "output",
];
const IDENTITIES = new Set(["pid", "forward_id", "step", "rank"]);
const NOT_DETAILS = new Set(["time_ms", "capture"]);

const view = { rows: null, columns: null, problem: "", filters: { ...EMPTY }, sort: { column: "", down: false }, page: 0, open: new Set(), found: [], focus: 0 };

function tableSection() {
  const section = el("section", { id: "all-rows" }, el("h2", {}, t("rows")));
  if (!view.rows) {
    section.append(el("p", { class: "dim", role: "status" }, view.problem ? t("unreadable", view.problem) : t("loading")));
    return section;
  }
  const table = el("table", { id: "rows-table", "aria-label": t("rows"), onkeydown: tableKey },
    el("thead", {}, el("tr", { id: "rows-head" })), el("tbody", { id: "rows-body" }));
  section.append(
    filterBar(),
    el("div", { class: "bar" },
      el("span", { id: "rows-found", role: "status", "aria-live": "polite" }),
      el("button", { type: "button", onclick: () => change({ ...EMPTY }) }, t("reset")),
      el("span", { class: "keys" }, el("kbd", {}, "/"), ` ${t("keys_search")}  `, el("kbd", {}, "↑ ↓"), ` ${t("keys_rows")}  `,
        el("kbd", {}, "Enter"), ` ${t("keys_open")}  `, el("kbd", {}, "PgUp PgDn"), ` ${t("keys_pages")}`),
      el("span", { class: "pages" },
        el("button", { type: "button", id: "previous", onclick: () => turn(-1) }, t("previous")),
        el("span", { id: "page-number" }),
        el("button", { type: "button", id: "next", onclick: () => turn(1) }, t("next")))),
    el("div", { class: "scroll", id: "rows-scroll" }, table),
  );
  return section;
}

function filterBar() {
  const { rows, filters } = view;
  const label = (name, control, wide) => el("label", { class: wide ? "wide" : null }, t(name), control);
  const text = (name, hint, values) => {
    const list = values ? el("datalist", { id: `values-${name}` }, values.slice(0, 500).map((value) => el("option", { value: visible(shortened(String(value), 200)) }))) : "";
    const input = el("input", { type: "search", id: `filter-${name}`, placeholder: hint || null, list: values ? `values-${name}` : null,
      autocomplete: "off", spellcheck: "false", oninput: () => later(() => change({ [name]: input.value }, false)) });
    input.value = filters[name];
    return [input, list];
  };
  const choice = (name, extra = []) => {
    const select = el("select", { id: `filter-${name}`, onchange: () => change({ [name]: select.value }, false) },
      el("option", { value: "" }, t("any")), extra.map((word) => el("option", { value: word }, t(word))),
      rows.values(name).map((value) => (value === "" ? "" : el("option", { value }, word(String(value))))));
    select.value = filters[name];
    return select;
  };
  return el("div", { class: "filters", role: "search", "aria-label": t("rows") },
    label("search", text("search", t("search_hint")), true),
    label("operator", text("operator", "", rows.values("operator")), true),
    label("verdict", choice("verdict", ["attention"])), label("phase", choice("phase")), label("level", choice("level")),
    label("step", text("step", t("step_hint"))), label("rank", choice("rank")), label("tool", choice("tool")),
    label("module", text("module", "", rows.values("module")), true));
}

let timer = 0;
function later(action) { clearTimeout(timer); timer = setTimeout(action, 120); }

// New filters; `fill` puts them into the controls too.
function change(filters, fillControls = true) {
  Object.assign(view.filters, filters);
  view.page = 0; view.focus = 0;
  view.open.clear();
  if (fillControls) for (const name of Object.keys(EMPTY)) {
    const control = document.getElementById(`filter-${name}`);
    if (control) control.value = view.filters[name];
  }
  choose();
}

function choose() {
  if (!view.rows) return;
  view.found = chosen(view.rows, view.filters, view.sort);
  drawTable();
}

const pages = () => Math.max(1, Math.ceil(view.found.length / PAGE));

function turn(by, focus = false) {
  const page = Math.min(pages() - 1, Math.max(0, view.page + by));
  if (page === view.page) return;
  view.page = page; view.focus = 0;
  drawTable();
  if (focus) focusRow(0);
}

// What is the same in all rows takes no column; the details have it.
const shownColumns = (rows) =>
  COLUMNS.filter(({ key }) => rows.has(key) && (key === "operator" || key === "call_site" || rows.varies(key)));

function drawTable() {
  const body = document.getElementById("rows-body");
  if (!body) return;
  const columns = (view.columns ??= shownColumns(view.rows));
  document.getElementById("rows-head").replaceChildren(...columns.map(headOf));
  const start = view.page * PAGE;
  const shown = view.found.slice(start, start + PAGE);
  const lines = shown.flatMap((row, index) => [rowOf(row, index, columns), ...(view.open.has(row) ? [detailsOf(row, columns.length)] : [])]);
  body.replaceChildren(...(lines.length ? lines : [el("tr", {}, el("td", { colspan: columns.length }, t("no_rows")))]));
  document.getElementById("rows-found").textContent = t("found", count(view.found.length), count(view.rows.length));
  document.getElementById("page-number").textContent = t("page", count(view.page + 1), count(pages()));
  document.getElementById("previous").disabled = view.page === 0;
  document.getElementById("next").disabled = view.page >= pages() - 1;
}

function headOf({ key, number }) {
  const sorted = view.sort.column === key;
  return el("th", { scope: "col", class: number ? "number" : null, "aria-sort": sorted ? (view.sort.down ? "descending" : "ascending") : "none" },
    el("button", { type: "button", "data-column": key, onclick: () => {
      view.sort = !sorted ? { column: key, down: Boolean(number) } : view.sort.down === Boolean(number) ? { column: key, down: !number } : { column: "", down: false };
      view.page = 0;
      choose();
      document.querySelector(`#rows-head [data-column="${key}"]`)?.focus();
    } }, t(key)));
}

function rowOf(row, index, columns) {
  const open = view.open.has(row);
  return el("tr", { class: "row", "data-row": row, tabindex: index === view.focus ? 0 : -1, "aria-expanded": open ? "true" : "false",
    onclick: (event) => { if (!getSelection().toString() && !event.target.closest("a")) toggle(row, index); } },
  columns.map(({ key, number }) => el("td", { class: number ? "number" : null }, cellOf(row, key, number))));
}

function cellOf(row, key, number) {
  if (number) return key === "time_ms" ? milliseconds(view.rows.number(row, key)) : IDENTITIES.has(key) ? plainNumber(view.rows.number(row, key)) : figure(view.rows.number(row, key));
  const text = view.rows.text(row, key);
  if (key === "verdict") return badge(text);
  if (key === "call_site") return data(shortened(shortSite(text), 80), "span", "cut mono");
  return data(shortened(text, 160), "span", key === "operator" ? "cut mono" : "cut");
}

const plainNumber = (value) => (Number.isNaN(value) ? "" : String(value));

function detailsOf(row, width) {
  const { rows } = view;
  const others = [...Object.keys(rows.codes), ...Object.keys(rows.numbers)].filter((name) => !DETAILS.includes(name) && !NOT_DETAILS.has(name));
  const entries = [...DETAILS, ...others].map((name) => {
    const number = rows.number(row, name);
    const text = name in rows.codes ? rows.text(row, name) : IDENTITIES.has(name) ? plainNumber(number) : figure(number, 8);
    if (text === "") return [];
    const long = text.length > 40 || name === "call_site";
    return fact(name, data(text, "div", long ? "mono long" : ""), long);
  });
  const capture = rows.text(row, "capture");
  const judged = colour(rows.text(row, "verdict"));
  const line = capture ? command(reproduceLine(capture), t("reproduce")) : judged === "bad" || judged === "low" ? command(captureLine(rows.text(row, "operator"), rows.text(row, "level")), t("not_captured")) : "";
  return el("tr", { class: "details" }, el("td", { colspan: width }, el("div", { class: "inner" }, el("dl", { class: "facts" }, entries), line)));
}

function toggle(row, index) {
  const line = document.querySelector(`#rows-body tr[data-row="${row}"]`);
  if (view.open.delete(row)) line.nextElementSibling.remove();
  else {
    view.open.add(row);
    line.after(detailsOf(row, view.columns.length));
  }
  line.setAttribute("aria-expanded", String(view.open.has(row)));
  focusRow(index);
}

function focusRow(index) {
  const lines = [...document.querySelectorAll("#rows-body tr.row")];
  if (!lines.length) return;
  view.focus = Math.min(lines.length - 1, Math.max(0, index));
  lines.forEach((line, number) => { line.tabIndex = number === view.focus ? 0 : -1; });
  lines[view.focus].focus();
}

function tableKey(event) {
  const line = event.target.closest?.("tr.row");
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("thead")) return;
  const index = line ? [...document.querySelectorAll("#rows-body tr.row")].indexOf(line) : view.focus;
  const actions = {
    ArrowDown: () => (index + 1 < PAGE ? focusRow(index + 1) : turn(1, true)),
    ArrowUp: () => focusRow(index - 1),
    Home: () => focusRow(0),
    End: () => focusRow(PAGE - 1),
    PageDown: () => turn(1, true), ArrowRight: () => turn(1, true),
    PageUp: () => turn(-1, true), ArrowLeft: () => turn(-1, true),
    Enter: () => line && toggle(Number(line.dataset.row), index),
    " ": () => line && toggle(Number(line.dataset.row), index),
  };
  if (!actions[event.key] || event.target.closest("button, code")) return;
  event.preventDefault();
  actions[event.key]();
}

// Show one row, wherever it is: without filters, opened, in sight.
function showRow(row) {
  view.sort = { column: "", down: false };
  change({ ...EMPTY });
  const index = view.found.indexOf(row);
  if (index < 0) return;
  view.page = Math.floor(index / PAGE);
  view.open.add(row);
  drawTable();
  focusRow(index % PAGE);
  document.activeElement.scrollIntoView({ block: "center" });
}

// Narrow the table from elsewhere on the page.
function showOnly(filters) {
  change({ ...EMPTY, ...filters });
  document.getElementById("all-rows").scrollIntoView();
  focusRow(0);
}
