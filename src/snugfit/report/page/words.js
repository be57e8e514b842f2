// Elements, and numbers in words (as units.py writes them). Texts are set, never parsed as HTML.

function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
  return made;
}

const UNITS = ["KiB", "MiB", "GiB", "TiB"];
function bytes(size) {
  let value = Math.abs(size), unit = "B";
  if (value >= 1024) for (unit of UNITS) { value /= 1024; if (value < 999.5) break; }
  const digits = unit === "B" ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return (size < 0 ? "-" : "") + rounded(value, digits) + " " + unit;
}
function rounded(value, digits) { // halves to even, as Python does: 1.125 is a usual number of GiB
  const scale = 10 ** digits, whole = Math.floor(value * scale), half = value * scale - whole === 0.5;
  return (half ? (whole + whole % 2) / scale : value).toFixed(digits);
}
function unitOf(most) {
  let size = 1, name = "B";
  for (const unit of UNITS) if (most >= size * 1024) { size *= 1024; name = unit; }
  return { size, name };
}
function seconds(time) {
  if (time < 99.95) return time < 0.9995 ? +(1e3 * time).toPrecision(3) + " ms" : +time.toPrecision(3) + " s";
  const whole = Math.round(time), minutes = Math.floor(whole / 60), pad = number => String(number).padStart(2, "0");
  return minutes < 100 ? `${minutes} min ${pad(whole % 60)} s` : `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
}
const spaced = name => name.replaceAll("_", " ");

function tableOf(table, title) {
  const side = column => (table.right.includes(column) ? { class: "right" } : {});
  const head = make("tr", {}, ...table.columns.map((text, column) => make(text ? "th" : "td", text ? { scope: "col", ...side(column) } : {}, text)));
  const rows = table.rows.map(row => make("tr", {}, ...row.map((text, column) => make("td", side(column), text))));
  // What may be wider than a phone scrolls by itself; it takes the focus, so that keys can scroll it.
  return make("div", { class: "holder", tabindex: "0", role: "region", "aria-label": title },
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}
function asTable(table, title) {
  return make("details", {}, make("summary", {}, "As a table"), tableOf(table, title + ", as a table"));
}
