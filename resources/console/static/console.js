// Keeps the page up to date: replaces the parts that carry data-live by those of the server, and draws the curves.
// All values arrive escaped in the server's page, or as numbers in its JSON; nothing here makes mark-up of text.
"use strict";

const PERIOD_MS = 3000;
const charts = new Map();
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const hours = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: "UTC" }; // as all times of the pages
const minutes = new Intl.DateTimeFormat("en", hours);
const seconds = new Intl.DateTimeFormat("en", { ...hours, second: "2-digit" });
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function isInUse(part) {
  return part.contains(document.activeElement) && document.activeElement.matches("input, select, button, a, .scroll")
    || part.querySelector("input[type=checkbox]:checked") !== null
    || (!getSelection().isCollapsed && part.contains(getSelection().anchorNode));
}

function isWrittenIn(page) {
  const fields = [...page.querySelectorAll("textarea, input:not([type=hidden])")];
  return isInUse(page) || fields.some((field) => field === document.activeElement || field.value !== field.defaultValue);
}

async function refreshParts() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
  if (answer.redirected && new URL(answer.url).pathname === "/login") return location.reload();
  if (!answer.ok) throw new Error(`${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const [parts, others] = [document, fresh].map((page) => [...page.querySelectorAll("[data-live]")]);
  if (`${parts.map((part) => part.id)}` !== `${others.map((other) => other.id)}`) {
    return isWrittenIn(document.getElementById("main")) || location.reload();
  }
  const news = parts.map((part, i) => [part, others[i]]).filter(([part, other]) => part.innerHTML !== other.innerHTML);
  const later = news.filter(([part]) => isInUse(part));
  for (const one of news) if (!later.includes(one)) one[0].replaceWith(document.adoptNode(one[1]));
  return later.length > 0;
}

function times(_, ticks) {
  const clock = ticks.every((tick) => tick % 60 === 0) ? minutes : seconds;
  return ticks.map((tick) => clock.format(new Date(1000 * tick)));
}

function options(box) {
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width: box.clientWidth, height: 150, padding: [null, 28, null, null], legend: { show: false }, cursor: { y: false, drag: { x: false, y: false } },
    scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
    axes: [{ ...axis, space: 70, size: 28, values: times }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => compact.format(tick)) }],
    series: [{}, { stroke: colour("--mark"), fill: colour("--mark") + "22", width: 2, spanGaps: true, points: { show: false } }],
  };
}

function draw(box, curves) {
  const values = curves[box.dataset.series];
  const newest = document.querySelector(`[data-newest="${box.dataset.series}"]`);
  const last = values.findLast((value) => value !== null);
  if (newest) newest.textContent = last === undefined ? "" : compact.format(last);
  box.dataset.points = values.length;
  box.dataset.last = last ?? "";
  const known = charts.get(box);
  if (known) return known.setData([curves.time, values]);
  if (values.length > 1) charts.set(box, new uPlot(options(box), [curves.time, values], box));
}

async function refreshCurves() {
  const boxes = document.querySelectorAll(".chart");
  if (!boxes.length) return;
  const answer = await fetch("/?format=json", { cache: "no-store" });
  if (!answer.ok) throw new Error(`${answer.status}`);
  const { curves } = await answer.json();
  boxes.forEach((box) => draw(box, curves));
}

function redraw() {
  charts.forEach((chart, box) => { chart.destroy(); charts.delete(box); });
  refreshCurves().catch(() => undefined);
}

async function refresh() {
  const wanted = document.getElementById("refresh");
  if (!document.hidden && wanted && wanted.checked) {
    let isStale = false;
    try {
      [isStale] = await Promise.all([refreshParts(), refreshCurves()]);
    } catch {
      isStale = true;
    }
    const mark = document.querySelector(".stale");
    if (mark) mark.hidden = !isStale;
  }
  setTimeout(refresh, PERIOD_MS);
}

if (document.body.dataset.page !== "login") {
  refreshCurves().catch(() => undefined);
  setTimeout(refresh, PERIOD_MS);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let resizing;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 200); });
}
