// Texts of all rows in lower case, by row; filled in the background once somebody searches.
const haystack = { texts: [], ready: 0, loading: null };

function rowText(row, texts) {
  const outputs = texts.passes.map((pass) => pass.output);
  return [row.example, texts.problem, JSON.stringify(texts.gold), ...outputs]
    .join("\n")
    .toLowerCase();
}

async function fillHaystack(index, onprogress) {
  for (let chunk = 0; chunk * index.chunk < index.rows.length; chunk++) {
    const first = chunk * index.chunk;
    JSON.parse(await unpack(`texts-${chunk}`)).forEach((texts, i) => {
      haystack.texts[first + i] = rowText(index.rows[first + i], texts);
    });
    haystack.ready = Math.min(first + index.chunk, index.rows.length);
    if (chunk % 8 === 7) onprogress();
    await new Promise((resolve) => setTimeout(resolve));
  }
  onprogress();
}

function loadHaystack(index, onprogress) {
  haystack.loading ??= fillHaystack(index, onprogress);
  return haystack.loading;
}

// Whether a row holds every word; until its texts are loaded, its title and answers are searched.
function holds(row, number, words) {
  if (!words.length) return true;
  const answers = row.passes.map((pass) => pass.answer);
  const text =
    haystack.texts[number] ?? [row.example, row.title, ...answers].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}
