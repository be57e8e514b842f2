// The pictures, as options of ECharts. Sizes are drawn in the unit of the largest one.

let drawn = [];
const style = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

function chart(section, label, height, options) {
  const holder = make("div", { class: "chart", role: "img", "aria-label": label });
  holder.style.height = height + "px";
  section.append(holder);
  const made = echarts.init(holder, null, { renderer: "svg" });
  made.setOption({ animation: false, aria: { enabled: true, label: { description: label } }, textStyle: { color: style("ink") }, ...options });
  const watch = new ResizeObserver(() => made.resize());
  watch.observe(holder);
  drawn.push({ made, watch });
  return made;
}
function forgetCharts() {
  for (const { made, watch } of drawn) { watch.disconnect(); made.dispose(); }
  drawn = [];
}

const narrow = () => window.innerWidth < 760;
const axisStyle = () => ({
  axisLabel: { color: style("faint") }, axisLine: { lineStyle: { color: style("line") } },
  splitLine: { lineStyle: { color: style("line"), opacity: 0.6 } }, nameTextStyle: { color: style("faint") },
});
function sizeAxis(unit, more) {
  return { type: "value", min: 0, ...axisStyle(), ...more, axisLabel: { color: style("faint"), hideOverlap: true, showMaxLabel: more && more.max ? false : null, formatter: value => +value.toPrecision(4) + " " + unit.name } };
}
const tooltip = () => ({ backgroundColor: style("ground"), borderColor: style("line"), confine: true, textStyle: { color: style("ink") } });
function tip(title, rows, below) {
  const lines = rows.map(([name, value, colour]) => {
    const mark = colour ? make("i", {}) : null;
    if (mark) mark.style.background = colour;
    return make("div", { class: "row" }, make("span", {}, mark, name), make("span", {}, value));
  });
  return make("div", { class: "tip" }, make("b", {}, title), ...lines, below ? make("div", { class: "faint" }, below) : null);
}
const legend = () => ({ icon: "roundRect", itemWidth: 14, itemHeight: 10, textStyle: { color: style("ink") }, top: 0, left: 0, itemGap: 14, type: narrow() ? "scroll" : "plain" });
const peakMark = (x, y, text) => ({
  symbol: "circle", symbolSize: 9, data: [{ coord: [x, y] }], itemStyle: { color: style("ground"), borderColor: style("ink"), borderWidth: 2 },
  label: { show: true, position: x > 0 ? "left" : "right", formatter: text, color: style("ink"), fontWeight: 600, backgroundColor: style("panel"), padding: [2, 5] },
});

// --- memory over the run

const SHADES = { forward: "#0072B2", backward: "#CC79A7", optimizer: "#E69F00", evaluation: "#009E73" };
function bands(timeline) {
  const found = [];
  timeline.events.forEach((event, i) => {
    const last = found[found.length - 1];
    if (last && last.phase === timeline.phase[i] && last.step === timeline.step[i]) return;
    if (last) last.end = event;
    found.push({ phase: timeline.phase[i], step: timeline.step[i], start: event, end: timeline.end });
  });
  return found;
}
function stepMarks(timeline) {
  const begins = new Map();
  for (const band of bands(timeline)) if (!["build", "load"].includes(band.phase) && !begins.has(band.step)) begins.set(band.step, band.start);
  return [...begins].map(([step, event]) => ({ xAxis: event, label: { formatter: "step " + (step + 1) } }));
}
function momentOf(timeline, i) {
  const module = timeline.module[i] ? " in " + timeline.module[i] : "";
  return `${timeline.phase[i]} of step ${timeline.step[i] + 1}: ${timeline.operator[i]}${module}`;
}
function timelineOptions(timeline, colours) {
  const tallest = Math.max(...timeline.total, ...(timeline.reserved || [0]));
  const limit = timeline.limit && timeline.limit[1] < 1.6 * tallest ? timeline.limit : null;
  const unit = unitOf(tallest), at = (values, i) => [timeline.events[i], values[i] / unit.size];
  const rows = values => timeline.events.map((_, i) => at(values, i));
  const line = { type: "line", showSymbol: false, emphasis: { disabled: true } };
  const series = timeline.categories.map(category => ({
    ...line, name: spaced(category.name), stack: "all", color: colours[category.name], lineStyle: { width: 0 }, areaStyle: { opacity: 0.9 }, data: rows(category.bytes),
  }));
  series.push({
    ...line, name: "total", color: style("ink"), lineStyle: { width: 0.8 }, data: rows(timeline.total),
    markPoint: peakMark(...at(timeline.total, timeline.peak), "peak " + bytes(timeline.total[timeline.peak])),
    markLine: { symbol: "none", silent: true, lineStyle: { color: style("faint"), type: "solid", width: 1 }, label: { color: style("faint"), position: "insideEndTop", rotate: 0 }, data: stepMarks(timeline) },
    markArea: {
      silent: true, label: { color: style("faint"), position: "insideTop", fontSize: 11 },
      data: bands(timeline).filter(band => SHADES[band.phase]).map(band => [
        { xAxis: band.start, itemStyle: { color: SHADES[band.phase], opacity: 0.1 }, label: { formatter: band.end - band.start > 0.09 * timeline.end && !narrow() ? band.phase : "" } }, { xAxis: band.end }]),
    },
  });
  if (timeline.reserved) series.push({ ...line, name: "reserved", color: style("faint"), lineStyle: { width: 1.3, type: "dashed" }, data: rows(timeline.reserved) });
  if (limit) series.push({ ...line, name: limit[0] + ": " + bytes(limit[1]), color: style("warning"), lineStyle: { width: 1.6, type: "dashed" }, data: [[0, limit[1] / unit.size], [timeline.end, limit[1] / unit.size]] });
  return {
    legend: legend(), grid: { left: 8, right: 12, top: 58, bottom: 8, containLabel: true }, series,
    xAxis: { type: "value", min: 0, max: timeline.end, ...axisStyle(), axisLabel: { show: false }, splitLine: { show: false } },
    yAxis: sizeAxis(unit, { max: shown => +(1.12 * shown.max).toPrecision(2) }),
    tooltip: { ...tooltip(), trigger: "axis", formatter: found => {
      const i = found[0].dataIndex, rows = timeline.categories.filter(category => category.bytes[i]).reverse();
      const lines = rows.map(category => [spaced(category.name), bytes(category.bytes[i]), colours[category.name]]);
      if (timeline.reserved) lines.push(["reserved", bytes(timeline.reserved[i])]);
      return tip(bytes(timeline.total[i]), lines, momentOf(timeline, i));
    } },
  };
}
function twoTimelines(one, other, places, names) {
  const unit = unitOf(Math.max(...one.total, ...other.total));
  const line = (name, events, values, colour) => ({
    name, type: "line", showSymbol: false, color: colour, areaStyle: { opacity: 0.12 }, emphasis: { disabled: true }, data: events.map((event, i) => [event, values[i] / unit.size]),
  });
  const series = [line(names[0], one.events, one.total, style("first")), line(names[1], places, other.total, style("second"))];
  series.forEach((found, i) => {
    const timeline = i ? other : one, at = found.data[timeline.peak];
    found.markPoint = peakMark(...at, "AB"[i] + " " + bytes(timeline.total[timeline.peak]));
  });
  series[0].markLine = { symbol: "none", silent: true, lineStyle: { color: style("faint"), type: "solid" }, label: { color: style("faint"), position: "insideEndTop", rotate: 0 }, data: stepMarks(one) };
  return {
    legend: legend(), grid: { left: 8, right: 12, top: 58, bottom: 8, containLabel: true }, series,
    xAxis: { type: "value", min: 0, max: one.end, ...axisStyle(), axisLabel: { show: false }, splitLine: { show: false } }, yAxis: sizeAxis(unit),
    tooltip: { ...tooltip(), trigger: "axis", formatter: found => {
      const lines = found.map(point => [point.seriesName, bytes(point.value[1] * unit.size), point.color]);
      const [point] = found, timeline = point.seriesIndex ? other : one;
      return tip("A and B, step for step", lines, momentOf(timeline, point.dataIndex));
    } },
  };
}

// --- what lives at the peak

const labelOn = category => (category === "weights" ? "#ffffff" : "#1f2328"); // its blue is the one dark colour
function treeOf(rows, colours, first) {
  const root = { children: new Map() };
  for (const row of rows) {
    const path = row.module.startsWith("(") ? [row.module] : row.module.split("."), name = spaced(row.category);
    let node = root;
    for (const part of first === "category" ? [name, ...path] : [...path, name]) {
      if (!node.children.has(part)) node.children.set(part, { name: part, children: new Map(), bytes: 0, category: row.category });
      node = node.children.get(part);
      if (node.category !== row.category) node.category = null;
    }
    node.bytes += row.bytes;
  }
  const plain = node => {
    let { name } = node, children = [...node.children.values()];
    while (children.length === 1 && !node.bytes) { // one in the other, again and again: one tile
      node = children[0]; name += "." + node.name; children = [...node.children.values()];
    }
    const inside = children.map(plain);
    if (inside.length && node.bytes) inside.push({ name: "itself", value: node.bytes, category: node.category });
    const category = node.category;
    return {
      name, category, value: node.bytes + children.reduce((sum, child) => sum + sizeOf(child), 0), children: inside,
      itemStyle: { color: category ? colours[category] : style("panel"), borderColor: style("ground") },
      label: { color: category ? labelOn(category) : style("ink") }, upperLabel: { color: style("ink") },
    };
  };
  const sizeOf = node => node.bytes + [...node.children.values()].reduce((sum, child) => sum + sizeOf(child), 0);
  return [...root.children.values()].map(plain);
}
function treemapOptions(anatomy, colours, first) {
  const share = value => (100 * value / anatomy.peak_bytes).toFixed(1) + "%";
  const level = { itemStyle: { borderColor: style("line"), borderWidth: 1, gapWidth: 1 }, upperLabel: { show: true, height: 20, color: style("ink") } };
  return {
    tooltip: { ...tooltip(), formatter: found => tip(found.treePathInfo.slice(1).map(one => one.name).join(" / ") || "all", [[bytes(found.value), share(found.value)]]) },
    series: [{
      type: "treemap", name: "all", roam: false, nodeClick: false, breadcrumb: { show: false }, data: treeOf(anatomy.rows, colours, first), left: 0, right: 0, top: 0, bottom: 0, visibleMin: 30,
      label: { show: true, lineHeight: 16, formatter: found => found.name + "\n" + bytes(found.value), overflow: "truncate" },
      upperLabel: { show: true, height: 20, formatter: found => found.name + "  " + bytes(found.value), overflow: "truncate" },
      levels: [{ itemStyle: { gapWidth: 2, borderWidth: 0, borderColor: style("ground") }, upperLabel: { show: false } }, level, level, level, level, level],
    }],
  };
}

// --- bars: cards, predicted beside measured, GPUs

function barOptions(names, series, unit, right) {
  return {
    legend: series.length > 1 ? legend() : undefined,
    grid: { left: 4, right, top: series.length > 1 ? 30 : 4, bottom: 4, containLabel: true }, series,
    xAxis: sizeAxis(unit, { position: "bottom", splitNumber: narrow() ? 3 : 6 }),
    yAxis: { type: "category", inverse: true, data: names, ...axisStyle(), axisLabel: { color: style("ink"), width: narrow() ? 110 : 260, overflow: "truncate" }, axisTick: { show: false } },
  };
}
function besideOptions(rows, keys, names) {
  const values = rows.flatMap(row => keys.map(key => row[key] || 0)), unit = unitOf(Math.max(1, ...values));
  const given = keys.filter(key => rows.some(row => row[key] !== null && row[key] !== undefined));
  const series = given.map(key => ({
    type: "bar", name: names[keys.indexOf(key)], color: style(keys.indexOf(key) ? "second" : "first"), barMaxWidth: 20,
    data: rows.map(row => (row[key] === null || row[key] === undefined ? null : row[key] / unit.size)),
    label: { show: true, position: "right", color: style("ink"), formatter: found => bytes(found.value * unit.size) },
  }));
  return {
    ...barOptions(rows.map(row => row.name), series, unit, 70),
    tooltip: { ...tooltip(), trigger: "axis", axisPointer: { type: "shadow" }, formatter: found =>
      tip(found[0].name, found.filter(one => one.value !== null && one.value !== undefined).map(one => [one.seriesName, bytes(one.value * unit.size), one.color])) },
  };
}
function cardOptions(rows) {
  const known = rows.filter(row => row.memory_bytes && row.headroom_bytes !== null), unit = unitOf(Math.max(...known.map(row => row.memory_bytes)));
  const bars = (name, fits) => ({
    type: "bar", name, stack: "needs", color: style(fits ? "good" : "warning"), barMaxWidth: 14, data: known.map(row => (row.fits === fits ? (row.memory_bytes - row.headroom_bytes) / unit.size : null)),
  });
  const memory = { type: "scatter", name: "the card's memory", symbol: "rect", symbolSize: [3, 16], color: style("ink"), data: known.map(row => row.memory_bytes / unit.size) };
  return {
    ...barOptions(known.map(row => row.name), [bars("needs, and fits", true), bars("needs, and does not fit", false), memory], unit, 40),
    tooltip: { ...tooltip(), trigger: "axis", axisPointer: { type: "shadow" }, formatter: found => {
      const row = known[found[0].dataIndex];
      const time = row.step_seconds === null ? [] : [["a step", seconds(row.step_seconds)]];
      return tip(row.name, [["needs", bytes(row.memory_bytes - row.headroom_bytes)], ["has", bytes(row.memory_bytes)], ...time], row.fits ? "fits" : "does not fit");
    } },
  };
}

// --- losses

function curveOptions(lines) {
  const axis = { type: "value", scale: true, ...axisStyle() };
  return {
    legend: legend(), grid: { left: 8, right: 26, top: 42, bottom: 26, containLabel: true },
    xAxis: { ...axis, name: "step", nameLocation: "middle", nameGap: 26 }, yAxis: axis,
    series: lines.map(({ name, points }, i) => ({ type: "line", name, color: style(i ? "second" : "first"), showSymbol: points.length < 30, data: points })),
    tooltip: { ...tooltip(), trigger: "axis", formatter: found =>
      tip("step " + found[0].value[0], found.map(one => [one.seriesName, +one.value[1].toPrecision(4), one.color])) },
  };
}

// --- memory against time

function frontierOptions(dials, names) {
  const unit = sizeOfBudgets(dials);
  // What takes far longer than the fastest is named at the upper edge; drawn to scale it would press all others flat.
  const ceiling = 1.04 * Math.max(...dials.map(dial => {
    const times = [...dial.answers, ...dial.composed].map(one => one.step_seconds);
    return Math.max(...times.filter(time => time <= 2.5 * Math.min(...times)));
  }));
  const point = (budget, one) => ({
    one, value: [budget / unit.size, Math.min(one.step_seconds, ceiling)],
    label: { show: one.step_seconds > ceiling, formatter: one.step + " \u2191", position: "right", color: style("ink") },
  });
  const series = dials.flatMap((dial, i) => {
    const line = dial.answers.map(one => point(one.from_bytes, one)), last = dial.answers[dial.answers.length - 1];
    const end = { ...point(Math.max(dial.positions[dial.positions.length - 2].budget_bytes, last.from_bytes), last), symbol: "none" };
    return { type: "line", name: names[i], color: style(i ? "second" : "first"), step: "end", symbol: "circle", symbolSize: 9, labelLayout: { hideOverlap: true }, data: [...line, end] };
  });
  if (dials.length === 1) {
    const [dial] = dials, composed = dial.composed.map((one, at) => point(dial.positions.find(position => position.faster === at).budget_bytes, one));
    if (composed.length) series.push({ type: "scatter", name: "composed, not simulated", symbol: "emptyDiamond", symbolSize: 10, color: style("faint"), labelLayout: { hideOverlap: true }, data: composed });
    series.push({ type: "scatter", name: CHOSEN, symbolSize: 17, color: style("second"), z: 1, data: [] });
  }
  return {
    legend: legend(), grid: { left: 8, right: 26, top: 56, bottom: 26, containLabel: true }, series,
    xAxis: sizeAxis(unit, { min: undefined, scale: true, name: "memory budget", nameLocation: "middle", nameGap: 26, splitNumber: 4 }),
    yAxis: { type: "value", scale: true, max: ceiling, ...axisStyle(), name: "a step", axisLabel: { color: style("faint"), showMaxLabel: false, formatter: seconds } },
    tooltip: { ...tooltip(), trigger: "item", formatter: ({ data: { one } }) =>
      tip(one.recipe, [["a step", one.step], ["needs", one.need]], one.from ? `from a budget of ${one.from} on` : "composed, not simulated") },
  };
}
const CHOSEN = "this budget";
const sizeOfBudgets = dials => unitOf(Math.max(...dials.flatMap(dial => dial.answers).map(one => one.from_bytes)));
function chooseOnFrontier(made, dial, position, found) {
  const chosen = made.getOption().series.findIndex(one => one.name === CHOSEN), [line] = made.getOption().series;
  const at = found && { ...line.data[dial.answers.indexOf(found)], label: { show: false } };
  made.setOption({ series: made.getOption().series.map((_, i) => (i === chosen ? { data: at ? [{ ...at, value: [position.budget_bytes / sizeOfBudgets([dial]).size, at.value[1]] }] : [] } : {})) });
}
