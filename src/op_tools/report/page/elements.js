// Making elements. Text is always set as text, never as markup: names and source lines come from programs.
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(2)) {
    if (child === null || child === undefined || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const drawn = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// What is invisible or turns the direction of writing is written out, so that a line reads as what it is.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
const visible = (text) =>
  String(text).replace(CONTROLS, (char) => "\\u" + char.charCodeAt(0).toString(16).padStart(4, "0"));
const shortened = (text, longest) => (text.length <= longest ? text : text.slice(0, longest - 1) + "…");
const data = (text, tag = "span", kind = "") => el(tag, { class: ("data " + kind).trim() }, visible(text));

const count = (number) => Number(number).toLocaleString("en-US");

// One way to write a number, on the page and on the console (figure of op_tools/tables.py).
function figure(value) {
  if (value === null || value === undefined || value === "") return "";
  if (typeof value === "string") return { nan: "NaN", inf: "∞", "-inf": "-∞" }[value] ?? value;
  if (value === NOT_A_NUMBER) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "-∞" : "";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return count(value);
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return size >= 1000 ? count(Math.round(value)) : String(Number(value.toPrecision(4)));
}
const milliseconds = (value) => (typeof value !== "number" || Number.isNaN(value) ? "" : figure(value));

function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let index = 0;
  while (value >= 1000 && index < units.length - 1) { value /= 1000; index += 1; }
  return `${Number(value.toPrecision(3))} ${units[index]}`;
}

const BAD = new Set(["fail", "error", "refused", "NaN", "Inf"]);
const GOOD = new Set(["same", "pass"]);
const LOW = new Set(["suspect", "tool error"]);
const isLow = (verdict) => LOW.has(verdict) || SUMMARY.labels.includes(verdict);
const colour = (verdict) => (BAD.has(verdict) ? "bad" : isLow(verdict) ? "low" : GOOD.has(verdict) ? "good" : "");
const word = (text) => shortened(visible(text), 40);
const badge = (verdict) => (verdict ? el("span", { class: `badge ${colour(verdict)}` }, word(verdict)) : "");

const shortSite = (site) => site.split(" ", 1)[0].split("/").pop();

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, `'"'"'`)}'`);
const reproduceLine = (capture) => `op-tools reproduce ${quoted(capture)}`;
const captureLine = (operator, level) => {
  // Rows of comparisons have no level; operators of the dispatcher are not torch's own functions.
  const aten = level ? level === "aten" : !operator.startsWith("torch.");
  const settings = [...(aten ? ["capture.level=aten"] : []), `capture.list=${operator}`];
  return `ditorch run SCRIPT.py --tool capture ${settings.map((setting) => `--set ${quoted(setting)}`).join(" ")}`;
};

function command(line, introduction) {
  const code = el("code", { tabindex: 0, "aria-label": introduction }, visible(line));
  const button = el("button", { type: "button", onclick: () => copy(line, code, button) }, t("copy"));
  return el("div", {}, el("p", { class: "dim" }, introduction), el("div", { class: "command" }, code, button));
}

// A term and its value; long values take a line of their own.
const fact = (name, value, long = false) =>
  el("div", { class: long ? "long-fact" : null }, el("dt", {}, t(name)), el("dd", { "data-fact": name }, value));

async function copy(line, code, button) {
  try {
    await navigator.clipboard.writeText(line);
  } catch {
    // A page from a file may not have the clipboard; the selection always works.
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = t("copied");
  setTimeout(() => { button.textContent = t("copy"); }, 1500);
}

// A table that is short enough to be sorted as it stands. Columns: {key, number, text(line), cell(line)}.
function smallTable(columns, lines, label) {
  const state = { key: "", down: true };
  const body = el("tbody", {});
  const heads = columns.map((column) => {
    const head = el("th", { scope: "col", class: column.number ? "number" : null },
      el("button", { type: "button", onclick: () => sort(column) }, t(column.key)));
    return head;
  });
  function sort(column) {
    state.down = state.key === column.key ? !state.down : Boolean(column.number);
    state.key = column.key;
    heads.forEach((head, index) => {
      if (columns[index] === column) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const worth = (line) => ({ nan: Infinity, inf: Infinity, "-inf": -Infinity }[line[column.key]] ?? line[column.key] ?? -Infinity);
    lines = [...lines].sort((a, b) => {
      const [x, y] = [worth(a), worth(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (state.down ? -1 : 1);
    });
    draw();
  }
  function draw() {
    body.replaceChildren(...lines.map((line) => el("tr", {}, columns.map((column) => {
      const content = column.cell ? column.cell(line) : figure(line[column.key]);
      return el("td", { class: column.number ? "number" : null }, content);
    }))));
  }
  draw();
  const table = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, heads)), body);
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
}
