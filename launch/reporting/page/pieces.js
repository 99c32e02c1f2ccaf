// Data lies in the page as gzipped base64; a piece is unpacked when it is first asked for.
const CACHED_PIECES = 48;
const unpacked = new Map();

async function unpack(name) {
  const packed = atob(document.getElementById(`piece-${name}`).textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// A JSON piece; the least recently used ones are let go.
function piece(name) {
  const known = unpacked.get(name) ?? unpack(name).then(JSON.parse);
  unpacked.delete(name);
  unpacked.set(name, known);
  if (unpacked.size > CACHED_PIECES) unpacked.delete(unpacked.keys().next().value);
  return known;
}

const libraries = new Map();

// Puts a library into the page, once: a script, which leaves its global name behind, or a style.
function library(name, tag = "script") {
  const add = (text) => {
    const node = document.createElement(tag);
    node.textContent = text;
    document.head.append(node);
    document.getElementById(`piece-${name}`).remove();
  };
  if (!libraries.has(name)) libraries.set(name, unpack(name).then(add));
  return libraries.get(name);
}
