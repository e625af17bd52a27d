// First the summary, which is small; the rows are unpacked while it is read.
const SUMMARY = JSON.parse(document.getElementById("summary").textContent);

function render() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.getElementById("page").replaceChildren(headSection(), el("main", {},
    answerSection(), operatorsSection(), ranksSection(), timelineSection(), timeSection(), tableSection(),
    ...Object.keys(SUMMARY.findings).map(findingsSection), environmentSection()));
  drawCharts();
  choose();
}

function switchLanguage() {
  language = language === "en" ? "zh" : "en";
  render();
  document.getElementById("language").focus();
}

function followHash() {
  const found = /^#row-(\d+)$/.exec(location.hash);
  if (found && view.rows) showRow(Number(found[1]));
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    const search = document.getElementById("filter-search");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  } else if (event.key === "Escape" && typing) {
    focusRow(view.focus);
  }
});
window.addEventListener("hashchange", followHash);
let resized = 0;
window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawCharts, 150); });

render();
performance.mark("first-screen");
setTimeout(async () => {
  try {
    view.rows = await readRows();
  } catch (error) {
    view.problem = String(error);
  }
  document.getElementById("all-rows").replaceWith(tableSection());
  choose();
  followHash();
  performance.mark("rows-ready");
  document.documentElement.dataset.ready = view.rows ? "yes" : "no";
}, 0);
