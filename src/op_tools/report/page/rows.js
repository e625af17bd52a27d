// The rows: packed columns of each tool, put together to one column over all rows.

// A row without a number has NaN in its column; a number that really is NaN is this one, and sorts above all others.
const NOT_A_NUMBER = Number.MAX_VALUE;

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const result = new Uint8Array(characters.length);
  for (let index = 0; index < characters.length; index += 1) result[index] = characters.charCodeAt(index);
  return result;
}

async function readRows() {
  const element = document.getElementById("rows");
  const packed = new Blob([fromBase64(element.textContent.trim())]);
  element.remove();
  const stream = packed.stream().pipeThrough(new DecompressionStream("gzip"));
  return new Rows(JSON.parse(await new Response(stream).text()));
}

const asNumber = (value) =>
  value === null ? NaN : typeof value === "number" ? value : { nan: NOT_A_NUMBER, inf: Infinity }[value] ?? -Infinity;

class Rows {
  constructor(document) {
    this.texts = document.texts;
    this.internal = new Set(document.internal);
    this.length = document.blocks.reduce((sum, block) => sum + block.count, 0);
    this.numbers = {};
    this.codes = {};
    let start = 0;
    for (const block of document.blocks) {
      for (const [name, values] of Object.entries(block.numbers)) {
        const column = (this.numbers[name] ??= new Float64Array(this.length).fill(NaN));
        for (let index = 0; index < values.length; index += 1) column[start + index] = asNumber(values[index]);
      }
      for (const [name, values] of Object.entries(block.texts)) {
        (this.codes[name] ??= new Int32Array(this.length)).set(values, start);
      }
      const tools = (this.codes.tool ??= new Int32Array(this.length));
      tools.fill(this.codeOf(block.tool), start, start + block.count);
      start += block.count;
    }
    this.addTimes();
  }

  codeOf(text) {
    const code = this.texts.indexOf(text);
    return code >= 0 ? code : this.texts.push(text) - 1;
  }

  // One column for the time of a call, forward and backward together.
  addTimes() {
    const { forward_elasped: forward, backward_elasped: backward } = this.numbers;
    if (!forward && !backward) return;
    const real = (value) => (value === undefined || Number.isNaN(value) || value === NOT_A_NUMBER ? 0 : value);
    this.numbers.time_ms = new Float64Array(this.length).map((_, row) => {
      const [there, back] = [forward?.[row], backward?.[row]];
      return Number.isNaN(there ?? NaN) && Number.isNaN(back ?? NaN) ? NaN : real(there) + real(back);
    });
  }

  has(name) { return name in this.numbers || name in this.codes; }
  text(row, name) { return name in this.codes ? this.texts[this.codes[name][row]] : ""; }
  number(row, name) { return name in this.numbers ? this.numbers[name][row] : NaN; }

  // The different values of a column in the order of their names.
  values(name) {
    const seen = name in this.codes
      ? [...new Set(this.codes[name])].map((code) => this.texts[code])
      : [...new Set(this.numbers[name] ?? [])].filter((value) => !Number.isNaN(value));
    return seen.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  }

  // Whether a column says anything: not the same in all rows.
  varies(name) {
    const column = this.codes[name] ?? this.numbers[name] ?? [];
    return column.some((value) => !Object.is(value, column[0]));
  }

  // For each text whether it holds a piece of text, whatever the case.
  holding(piece) {
    const wanted = piece.toLowerCase();
    const result = new Uint8Array(this.texts.length);
    this.texts.forEach((text, code) => { result[code] = text.toLowerCase().includes(wanted) ? 1 : 0; });
    return result;
  }

  // The rank of each text in alphabetical order; the empty one is last whatever the direction.
  ranks() {
    if (!this.ranked) {
      const order = this.texts.map((_, code) => code);
      order.sort((a, b) => (this.texts[a] < this.texts[b] ? -1 : 1));
      this.ranked = new Float64Array(this.texts.length);
      order.forEach((code, index) => { this.ranked[code] = index; });
      this.ranked[0] = NaN;
    }
    return this.ranked;
  }
}

// The filters as a list of tests on a row's number.
function testsOf(rows, filters) {
  const tests = [];
  const byText = (name, keep) => {
    const column = rows.codes[name];
    tests.push(column ? (row) => keep[column[row]] : () => keep[0]);
  };
  for (const name of ["operator", "module"]) if (filters[name]) byText(name, rows.holding(filters[name]));
  for (const name of ["verdict", "phase", "level", "tool"]) {
    const wanted = filters[name];
    if (!wanted) continue;
    const fits = (text) => (wanted === "attention" ? BAD.has(text) || isLow(text) : wanted === "none" ? text === "" : text === wanted);
    byText(name, Uint8Array.from(rows.texts, (text) => (fits(text) ? 1 : 0)));
  }
  if (filters.rank !== "" && rows.numbers.rank) tests.push((row) => rows.numbers.rank[row] === Number(filters.rank));
  const steps = stepTest(filters.step);
  if (steps) tests.push((row) => steps(rows.number(row, "step")));
  if (filters.search) {
    const keep = rows.holding(filters.search);
    const columns = Object.values(rows.codes);
    tests.push((row) => columns.some((column) => keep[column[row]]));
  }
  return tests;
}

function stepTest(text) {
  const ranges = text.split(",").map((part) => /^\s*(\d+)\s*(?:-\s*(\d+)\s*)?$/.exec(part)).filter(Boolean);
  if (!ranges.length) return null;
  return (step) => ranges.some(([, low, high]) => step >= Number(low) && step <= Number(high ?? low));
}

// What needs attention first, what computes nothing (questions about shapes, other names of a tensor) last; within that as it happened.
function inOrderOfInterest(rows, found) {
  const { operator, verdict } = rows.codes;
  const classOf = (row) => (verdict && ["bad", "low"].includes(colour(rows.texts[verdict[row]])) ? 0 : operator && rows.internal.has(operator[row]) ? 2 : 1);
  const classes = [[], [], []];
  for (const row of found) classes[classOf(row)].push(row);
  return classes.flat();
}

function chosen(rows, filters, sort) {
  const tests = testsOf(rows, filters);
  const found = [];
  for (let row = 0; row < rows.length; row += 1) if (tests.every((test) => test(row))) found.push(row);
  if (!sort.column) return inOrderOfInterest(rows, found);
  const codes = rows.codes[sort.column];
  const ranks = codes ? rows.ranks() : null;
  const worth = codes ? (row) => ranks[codes[row]] : (row) => rows.number(row, sort.column);
  const worths = new Float64Array(rows.length);
  for (const row of found) worths[row] = worth(row);
  const sign = sort.down ? -1 : 1;
  return found.sort((a, b) => {
    const [x, y] = [worths[a], worths[b]];
    if (Number.isNaN(x) || Number.isNaN(y)) return (Number.isNaN(x) ? 1 : 0) - (Number.isNaN(y) ? 1 : 0) || a - b;
    return (x - y) * sign || a - b;
  });
}
