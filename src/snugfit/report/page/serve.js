// The live page: a form whose every change asks the server anew; what was asked before is given up.

function serve(form) {
  const status = make("p", { role: "status" }), tab = String(Math.random()).slice(2);
  const inputs = form.fields.map(field => {
    const id = "field-" + field.name;
    const input = field.choices
      ? make("select", { id, name: field.name }, ...field.choices.map(text => make("option", { value: text, selected: text === field.value }, text || field.none)))
      : make("input", { id, name: field.name, value: field.value || "", placeholder: field.none || "", autocomplete: "off", spellcheck: false });
    return [input, make("label", { for: id, ...(field.wide ? { class: "wide" } : {}) }, field.label, input)];
  });
  const element = make("form", {}, ...inputs.map(([, label]) => label));
  document.getElementById("live").append(element, status);
  document.title = "snugfit serve";
  let asking = null, waiting = null;
  const say = (text, wrong) => { status.textContent = text; status.className = wrong ? "error" : "faint"; };

  const stale = is => document.getElementById("page").classList.toggle("stale", is); // an answer to another question

  async function ask() {
    if (asking) asking.abort();
    const mine = asking = new AbortController(), asked = Object.fromEntries(inputs.map(([input]) => [input.name, input.value.trim()]));
    if (!asked.model) return say("Name a model, such as torchvision:resnet50.");
    say("Asking ...");
    stale(true);
    try {
      const answer = await fetch("answers", { method: "POST", signal: mine.signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify({ tab, asked }) });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        text += value || "";
        const lines = text.split("\n");
        text = lines.pop();
        for (const line of lines) take(JSON.parse(line));
        if (done) break;
      }
    } catch (error) {
      if (!mine.signal.aborted) say("The server does not answer: " + error.message, true);
    }
  }
  function take({ doing, error, page }) {
    if (page) { show(page); stale(false); }
    if (error) say(error, true);
    else if (doing !== undefined) say(doing);
  }
  element.addEventListener("submit", event => { event.preventDefault(); ask(); });
  element.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(ask, 300); });
  ask();
}
