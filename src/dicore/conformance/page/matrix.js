const box = document.getElementById("filter");
const kind = document.getElementById("kind");
const shown = document.getElementById("shown");
const rows = [...document.querySelectorAll("#matrix tbody tr")];
const failures = [...document.querySelectorAll("details.function")];

function fits(name, words) {
  return words.every((word) => name.includes(word));
}

function apply() {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const wanted = kind.value === "all" || row.dataset.kinds.split(" ").includes(kind.value);
    row.hidden = !(wanted && fits(row.dataset.name, words));
    count += row.hidden ? 0 : 1;
  }
  for (const failure of failures) failure.hidden = !fits(failure.dataset.name, words);
  const all = `${rows.length} function${rows.length === 1 ? "" : "s"}`;
  shown.textContent = count === rows.length ? all : `${count} of ${all}`;
}

function open() {
  const target = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
  const around = target && target.closest("details");
  if (!around) return;
  around.hidden = false;
  around.open = true;
  target.scrollIntoView();
}

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
document.getElementById("tools").hidden = false;
box.addEventListener("input", apply);
kind.addEventListener("change", apply);
addEventListener("hashchange", open);
apply();
open();
document.documentElement.dataset.ready = "1"; // for programs that look at the page
