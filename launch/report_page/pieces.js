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

// Runs a library once; it leaves its global name behind.
function library(name) {
  if (!libraries.has(name)) {
    libraries.set(name, unpack(name).then((text) => {
      const script = document.createElement("script");
      script.textContent = text;
      document.head.append(script);
      document.getElementById(`piece-${name}`).remove();
    }));
  }
  return libraries.get(name);
}

function styleLibrary(name) {
  if (!libraries.has(name)) {
    libraries.set(name, unpack(name).then((text) => {
      const style = document.createElement("style");
      style.textContent = text;
      document.head.append(style);
      document.getElementById(`piece-${name}`).remove();
    }));
  }
  return libraries.get(name);
}
