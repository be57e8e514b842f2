// The page: sections of one document, or two beside each other. `show` replaces what stands there.

const PARTS = {
  facts: ["In short", factsSection],
  dial: ["Another budget", dialSection],
  measured: ["Predicted beside measured", measuredSection],
  curve: ["Losses", (section, found, title) => chart(section, title + ", step by step", 300, curveOptions(found.lines))],
  rungs: ["Memory by rung", (section, found, title) => {
    measuredSection(section, found, title);
    section.append(tableOf(found.table, title));
    return true;
  }],
  anatomy: ["What lives at the peak", anatomySection],
  timeline: ["Memory over the run", timelineSection],
  cards: ["Cards", (section, found, title) => chart(section, "What a step needs on each card, and what the card has", 60 + 17 * found.rows.length, cardOptions(found.rows))],
  gpus: ["Several GPUs", gpusSection],
  ranks: ["By process", (section, found) => chart(section, "Memory of each process", 50 + 26 * found.rows.length, besideOptions(found.rows, ["bytes"], ["memory"]))],
  largest: ["Largest tensors at the peak", tableSection],
  why: ["Why this recipe", tableSection],
};
const TWO = {
  facts: ["Both in short", tableSection],
  frontiers: ["Two plans: memory against time", (section, found, title, page) => chart(section, title, 380, frontierOptions(page.documents.map(one => one.sections.dial), ["A", "B"]))],
  measured: ["One beside the other", measuredSection],
  timelines: ["Memory over both runs", (section, found, title, page) => {
    const [one, other] = page.documents.map(document => document.sections.timeline);
    chart(section, title, 380, twoTimelines(one, other, found.b_events, ["A", "B"]));
  }],
  differences: ["What differs at the peak", (section, found, title, page) => {
    chart(section, title + ", by category", 60 + 44 * found.rows.length, besideOptions(found.rows.map(row => ({ ...row, name: spaced(row.name) })), ["a", "b"], ["A", "B"]));
    section.append(tableOf(found.table, title));
    return true;
  }],
};
let current = null;

function show(page) {
  current = page;
  forgetCharts();
  const main = document.getElementById("page"), { documents } = page, two = documents.length > 1;
  const title = documents.map((one, i) => (two ? "AB"[i] + ": " : "") + one.title).join("  |  ");
  document.title = title + " - snugfit";
  main.replaceChildren(make("h1", {}, two ? "Two documents on one axis" : title));
  if (two) main.append(make("dl", {}, ...documents.flatMap((one, i) => [make("dt", {}, "AB"[i]), make("dd", {}, `${one.title} (${one.kind}, ${one.name})`)])), make("br"));
  else main.append(make("p", { class: "faint" }, [documents[0].kind, documents[0].name].filter(Boolean).join(", ")));
  for (const [name, [heading, fill]] of Object.entries(TWO)) if (page.comparison[name]) part(main, "h2", heading, fill, page.comparison[name], page);
  documents.forEach((one, i) => {
    const within = two ? make("section", { class: "document" }, make("h2", {}, `${"AB"[i]}: ${one.title}`)) : main;
    if (two) main.append(within);
    for (const [name, [heading, fill]] of Object.entries(PARTS)) if (one.sections[name]) part(within, two ? "h3" : "h2", heading, fill, one.sections[name], page);
  });
}

function begin(data) {
  if (data.form) serve(data.form);
  else show(data);
}

function part(within, level, heading, fill, found, page) {
  const id = "part-" + document.querySelectorAll("section").length;
  const section = make("section", { "aria-labelledby": id }, make(level, { id }, heading));
  within.append(section); // before it is filled: a chart asks for its width
  const whole = fill(section, found, heading, page);
  if (found.table && whole !== true) section.append(asTable(found.table, heading));
}

function factsSection(section, found) {
  section.append(make("dl", {}, ...found.rows.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])));
}
function tableSection(section, found, title) {
  section.append(tableOf(found.table, title));
  return true;
}
function measuredSection(section, found, title) {
  const beside = found.rows[0].a === undefined ? [["predicted", "measured"], ["predicted", "measured"]] : [["a", "b"], ["A", "B"]];
  chart(section, title, 56 + 46 * found.rows.length, besideOptions(found.rows, ...beside));
}
function gpusSection(section, found, title) {
  const rows = found.rows.filter(row => row.total_bytes !== null);
  chart(section, "Memory of each GPU, by how many share the batch", 50 + 30 * rows.length, besideOptions(rows, ["total_bytes"], ["memory of each"]));
  section.append(...found.notes.map(text => make("p", {}, text)), tableOf(found.table, title));
  return true;
}

function anatomySection(section, found, title, page) {
  const group = "order-" + document.querySelectorAll("fieldset").length;
  const choices = [["module", "by module"], ["category", "by category"]].map(([value, text], i) => {
    const input = make("input", { type: "radio", name: group, value, checked: i === 0 });
    input.addEventListener("change", () => tree.setOption(treemapOptions(found, page.colours, value), true));
    return make("label", {}, input, " " + text);
  });
  const used = Object.keys(page.colours).filter(name => found.rows.some(row => row.category === name));
  const keys = used.map(name => {
    const mark = make("i", {});
    mark.style.background = page.colours[name];
    return make("li", {}, mark, spaced(name) + " " + bytes(found.rows.reduce((sum, row) => sum + (row.category === name ? row.bytes : 0), 0)));
  });
  section.append(
    make("p", {}, `${bytes(found.peak_bytes)} in tensors at the peak: ${found.where}.`),
    make("fieldset", {}, make("legend", {}, "Tiles"), ...choices), make("ul", { class: "key" }, ...keys),
  );
  const tree = chart(section, title + ", by module and category", 420, treemapOptions(found, page.colours, "module"));
}

function timelineSection(section, found, title, page) {
  const id = "moment-" + document.querySelectorAll("input[type=range]").length;
  const line = chart(section, title + ", by category", 380, timelineOptions(found, page.colours));
  const text = make("output", { for: id }), slider = make("input", { id, type: "range", min: "0", max: String(found.events.length - 1), value: String(found.peak) });
  const words = () => {
    const i = +slider.value;
    text.value = `${bytes(found.total[i])}, ${momentOf(found, i)}`;
    slider.setAttribute("aria-valuetext", text.value);
  };
  slider.addEventListener("input", () => {
    words();
    line.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: +slider.value });
  });
  words();
  section.append(make("label", { for: id }, "A moment of the run: ", text), slider);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => current && show(current));
