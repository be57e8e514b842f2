// The dial: a slider over budgets. Each position holds its answer; nothing is computed here.

function dialSection(section, dial, title) {
  const id = "dial-" + document.querySelectorAll("input[type=range]").length;
  const shown = make("output", { for: id }), last = dial.positions.length - 1;
  const slider = make("input", { id, type: "range", min: "0", max: String(last), step: "1", value: String(dial.start) });
  const marks = make("div", { class: "marks", "aria-hidden": "true" });
  let before = dial.positions[0];
  dial.positions.forEach((position, i) => {
    if (position.answer === before.answer && position.faster === before.faster) return;
    const mark = make("i", position.answer === before.answer ? { class: "composed" } : {});
    mark.style.left = 100 * i / last + "%";
    marks.append(mark);
    before = position;
  });
  const answer = make("div", { class: "answer", "aria-live": "polite" }), copies = make("div", {});
  dial.planned ??= dial.positions[dial.start].budget; // the start moves with the slider, so that a page drawn anew stays there
  const words = `The arrow keys move it; the marks are where the recipe changes. ${dial.end} What stands around it on this page is of the plan for ${dial.planned}.`;
  const columns = make("div", { class: "columns" }), left = make("div", {}), right = make("div", {});
  left.append(answer, copies);
  columns.append(left, right);
  section.append(
    make("label", { class: "budget", for: id }, "Memory budget", shown), slider, marks,
    make("div", { class: "ends" }, make("span", {}, dial.positions[0].budget), make("span", {}, dial.positions[last].budget)), make("p", { class: "faint" }, words), columns,
  );
  const frontier = chart(right, title + ": memory budget against the time of a step", narrow() ? 300 : 380, frontierOptions([dial], ["simulated"]));

  function turn() {
    const position = dial.positions[+slider.value], found = position.answer === null ? null : dial.answers[position.answer];
    shown.value = position.budget;
    dial.start = +slider.value;
    slider.setAttribute("aria-valuetext", position.budget + ": " + (found ? `${found.recipe}; ${found.step} a step` : "nothing fits"));
    answer.replaceChildren(...(found ? answerOf(dial, position, found) : [make("p", { class: "recipe" }, dial.too_little)]));
    copies.replaceChildren(...(found ? [["Recipe as a file", position.command], ["Train by it (and what your data needs)", found.train], ["In Python", found.python]].filter(([, text]) => text).map(copyable) : []));
    chooseOnFrontier(frontier, dial, position, found);
  }
  slider.addEventListener("input", turn);
  frontier.on("click", found => {
    const at = found.data && dial.positions.findIndex(position => dial.answers[position.answer] === found.data.one);
    if (at >= 0) { slider.value = String(at); turn(); }
  });
  turn();
  const rows = dial.answers.map(one => [one.from, one.need, one.total, one.step, one.fidelity, one.recipe]);
  const columnsOf = ["from a budget of", "needs", "reserves where memory is not short", "a step", "fidelity", "recipe"];
  section.append(asTable({ columns: columnsOf, rows, right: [0, 1, 2, 3] }, title));
}

function answerOf(dial, position, found) {
  const facts = [
    ["needs", "need", found.need + " (simulated)"], ["reserves", "total", found.total + (dial.context ? ` where memory is not short, ${dial.context} of it CUDA's context` : " where memory is not short")],
    ["stays free", "margin", position.margin + ", because predictions err"], ["host memory", "host", found.host], ["a step", "step", `${found.step} (simulated), ${found.slowdown}`], ["fidelity", "fidelity", found.fidelity],
  ];
  const list = make("dl", {}, ...facts.filter(([, , text]) => text).flatMap(([name, field, text]) => [make("dt", {}, name), make("dd", { "data-field": field }, text)]));
  const faster = position.faster === null ? null : dial.composed[position.faster];
  return [
    make("p", { class: "recipe", "data-field": "recipe" }, found.recipe), list,
    found.more || found.less ? make("p", { class: "faint" }, make("br"), "With more, ", found.more || "nothing that was simulated and fits the device is faster", ".", make("br"), "With less, ", found.less || "nothing that was simulated fits", ".") : null,
    faster && make("p", { class: "composed-note", "data-field": "faster" }, `May be faster: ${faster.recipe}: ${faster.step} a step, needs ${faster.need} (composed, not simulated).`),
  ].filter(Boolean);
}

function copyable([title, text]) {
  const code = make("code", {}, text), button = make("button", { type: "button", "aria-label": "Copy: " + title }, "Copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); } catch { // some browsers let no file do that: then by what is selected
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
  });
  return make("div", { class: "copied" }, make("div", { class: "faint" }, title), make("div", { class: "copy" }, code, button));
}
