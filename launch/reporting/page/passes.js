// One pass of a sample: verdict, answer, numbers, prompt, think and answer.
function messages(prompts, number, pass, earlier) {
  if (!isKnown(number)) return [about("The rows' folder does not say how the prompt was made.")];
  const texts = (numbers) => numbers.map((text) => prompts.texts[text]).join("");
  const turns = prompts.prompts[number].map(([role, ...numbers]) => [role, texts(numbers)]);
  const again = [
    ["assistant", earlier],
    ["user", pass.cue_text ?? "(the row does not hold the cue's text)"],
  ];
  const isPrefill = ([role]) => role === "prefill";
  return [
    ...turns.filter((turn) => !isPrefill(turn)),
    ...(earlier === null ? [] : again),
    ...turns.filter(isPrefill),
  ].map(([role, text]) => div("message", span("role", role), div("said", text)));
}

function outputBlock(pass, series, [begin, end], tip) {
  if (!options.rendered) return shadedText(pass, series, [begin, end], tip);
  const chars = characters(pass.output);
  const nodes = decorate(chars, begin, end, marksOf(pass)).flatMap((node) => {
    if (typeof node === "string") return withFormulas(node, begin > 0);
    node.replaceChildren(...withFormulas(node.textContent));
    return [node];
  });
  return div("output", nodes);
}

function facts(line, { fields }) {
  const stops = Object.entries(fields)
    .filter(([name]) => name.startsWith("stop_reason_"))
    .map(([name, why]) => `${name.slice(12)}: ${why}`);
  const found = [
    ["entropy", isKnown(line.entropy) ? `${fixed(line.entropy, 3)} nats` : ""],
    ["think", fixed(fields.entropy_think, 3)],
    ["answer", fixed(fields.entropy_answer, 3)],
    ["tokens", isKnown(line.tokens) ? shown(line.tokens) : ""],
    ["stopped", stops.join(", ")],
    ["soft reward", fixed(fields.soft_reward ?? fields["soft reward"], 3)],
    ["markers", (fields.reconsider_markers ?? []).join(", ")],
  ].filter(([, value]) => value !== "");
  const items = found.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value)),
  );
  return make("dl", { className: "facts" }, items);
}

function answers(line, pass, texts) {
  const gold = golds(texts).map((text) => withFormulas(text, true));
  if (!gold.length && !("pred_answer" in pass.fields)) return null;
  const answered = String(pass.fields.pred_answer ?? line.answer ?? "") || "nothing";
  const either = gold.flatMap((nodes, i) => (i ? [" or ", ...nodes] : nodes));
  return make(
    "p",
    { className: "answers" },
    "answered ",
    make("strong", {}, withFormulas(answered, true)),
    gold.length ? [" · gold ", make("strong", {}, either)] : null,
  );
}

// Only output with tags, or with phases of those names, says what is thought and what is answered.
const isTagged = (pass) => pass.tags.length > 0 || isKnown(pass.answer_at) || pass.has_think;

function passBlock({ row, texts, tokens, prompts }, i, tip) {
  const [line, pass, series] = [row.passes[i], texts.passes[i], tokens[i]];
  const name = passName(line, i);
  const end = characters(pass.output).length;
  const split = pass.answer_at ?? end;
  const earlier = i === 0 ? null : (pass.shown ?? texts.passes[0].output);
  const verdict = `${mark(line.right)} ${verdictWord(line.right)}`;
  const block = (title, place) => [make("h4", {}, title), outputBlock(pass, series, place, tip)];
  const fields = Object.entries(pass.fields);
  return make(
    "article",
    { className: "pass", "aria-label": name },
    make("h3", {}, name, " ", span(`badge ${verdictClass(line.right)}`, verdict)),
    pass.cue_text ? make("p", { className: "cue-line" }, span("cue", pass.cue_text)) : null,
    answers(line, pass, texts),
    facts(line, pass),
    details("Prompt", messages(prompts, row.prompt, pass, earlier)),
    split > 0 ? block(isTagged(pass) ? "Think" : "Output", [0, split]) : null,
    split < end ? block("Answer", [split, end]) : null,
    details("All fields", table(["field", "value"], fields, "Fields of this pass")),
  );
}
