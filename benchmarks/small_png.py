"""Make a screenshot small: a PNG with a palette of its commonest colors, found and applied by the browser itself."""

import base64
import struct
import zlib
from typing import Any

MOST_COLORS = 64

_REDUCE = """
async ([source, most]) => {
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data;
  const counts = new Map();
  const key = (at) => (data[at] << 16) | (data[at + 1] << 8) | data[at + 2];
  for (let at = 0; at < data.length; at += 4) counts.set(key(at), (counts.get(key(at)) || 0) + 1);
  const sorted = [...counts].sort((one, other) => other[1] - one[1]).map(([color]) => color);
  const split = (color) => [color >> 16, (color >> 8) & 255, color & 255];
  const distance = (one, other) => split(one).reduce((sum, part, at) => sum + (part - split(other)[at]) ** 2, 0);
  const palette = [];
  // Common colors first, and none twice in shades that nobody tells apart.
  for (const color of sorted) {
    if (palette.length === most) break;
    if (palette.every((taken) => distance(taken, color) > 300)) palette.push(color);
  }
  const places = new Map();
  const nearest = (color) => {
    let place = places.get(color);
    if (place === undefined) {
      place = 0;
      for (let at = 1; at < palette.length; at += 1)
        if (distance(palette[at], color) < distance(palette[place], color)) place = at;
      places.set(color, place);
    }
    return place;
  };
  const pixels = new Uint8Array(image.width * image.height);
  for (let at = 0; at < pixels.length; at += 1) pixels[at] = nearest(key(4 * at));
  let text = "";
  for (let at = 0; at < pixels.length; at += 32768)
    text += String.fromCharCode(...pixels.subarray(at, at + 32768));
  return { width: image.width, height: image.height, palette: palette.map(split), pixels: btoa(text) };
}
"""


def small_png(view: Any, png: bytes) -> bytes:
    """The same picture with a palette; `view` is a browser page to work in."""
    source = "data:image/png;base64," + base64.b64encode(png).decode()
    found = view.evaluate(_REDUCE, [source, MOST_COLORS])
    width, height = found["width"], found["height"]
    pixels = base64.b64decode(found["pixels"])
    rows = b"".join(b"\0" + pixels[width * row : width * (row + 1)] for row in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    palette = b"".join(bytes(color) for color in found["palette"])
    chunks = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in chunks)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
