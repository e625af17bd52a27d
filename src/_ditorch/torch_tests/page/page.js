const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.rows.map((values) => {
  const row = Object.fromEntries(data.fields.map((name, index) => [name, values[index]]));
  row.text = [row.file, row.case, row.operator, row.message, row.reason].join(" ").toLowerCase();
  return row;
});
const at = (id) => document.getElementById(id);
const STEP = 300;
let shown = STEP;

const element = (tag, text, className) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};
const option = (select, value) => { const made = element("option", value); made.value = value; select.append(made); };
const present = (name) => [...new Set(rows.map((row) => row[name]))].sort();

const wanted = () => {
  const words = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const state = at("state").value, file = at("file").value;
  return rows.filter((row) => (!state || row.result === state) && (!file || row.file === file)
    && words.every((word) => row.text.includes(word)));
};

const head = (names) => {
  const line = element("tr");
  names.forEach(([text, isNumber]) => line.append(element("th", text, isNumber ? "number" : text)));
  at("head").replaceChildren(line);
};

const caseLine = (row) => {
  const line = element("tr");
  line.append(element("td", row.file), element("td", row.case), element("td", row.operator));
  line.append(element("td", row.result, row.result), element("td", row.seconds.toFixed(2), "number"));
  const cause = element("td", [row.message, row.reason].filter(Boolean).join(" \u2014 "));
  if (row.detail) {
    const details = element("details");
    details.append(element("summary", "traceback"), element("pre", row.detail));
    cause.append(details);
  }
  line.append(cause);
  return line;
};

const cases = (found) => {
  head([["file"], ["case"], ["operator"], ["result"], ["seconds", true], ["cause"]]);
  at("body").replaceChildren(...found.slice(0, shown).map(caseLine));
  at("more").hidden = found.length <= shown;
};

const groups = (found, name) => {
  const table = new Map();
  found.forEach((row) => {
    const key = row[name] || "(none named)";
    if (!table.has(key)) table.set(key, new Map());
    const counts = table.get(key);
    counts.set(row.result, (counts.get(row.result) || 0) + 1);
  });
  const states = data.states.filter((state) => found.some((row) => row.result === state));
  head([[name], ["cases", true], ...states.map((state) => [state, true]), ["passed of run", true]]);
  const lines = [...table].sort(([a], [b]) => a < b ? -1 : 1).map(([key, counts]) => {
    const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
    const ran = total - (counts.get("skipped") || 0), passed = counts.get("passed") || 0;
    const line = element("tr", undefined, "group");
    line.append(element("td", key), element("td", total, "number"));
    states.forEach((state) => line.append(element("td", counts.get(state) || 0, `number ${counts.get(state) ? state : ""}`)));
    line.append(element("td", ran ? `${(100 * passed / ran).toFixed(1)} %` : "", "number"));
    line.addEventListener("click", () => { at("search").value = key; at("group").value = "cases"; draw(); });
    return line;
  });
  at("body").replaceChildren(...lines);
  at("more").hidden = true;
};

const draw = () => {
  const found = wanted(), group = at("group").value;
  at("found").textContent = `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} cases`;
  if (group === "cases") cases(found); else groups(found, group);
};

present("result").forEach((state) => option(at("state"), state));
present("file").forEach((file) => option(at("file"), file));
["search", "state", "file", "group"].forEach((id) => at(id).addEventListener("input", () => { shown = STEP; draw(); }));
at("more").addEventListener("click", () => { shown += STEP; draw(); });
draw();
