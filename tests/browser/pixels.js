// Mean colour of each rectangle of a screenshot: arguments are the picture (base64), rectangles in CSS pixels.
const [picture, rectangles, done] = arguments;
const image = new Image();
image.onload = () => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const drawing = canvas.getContext("2d", { willReadFrequently: true });
  drawing.drawImage(image, 0, 0);
  const scale = image.width / innerWidth;
  done(
    rectangles.map(({ x, y, width, height }) => {
      const { data } = drawing.getImageData(
        x * scale,
        y * scale,
        Math.max(1, width * scale),
        Math.max(1, height * scale),
      );
      const sums = [0, 0, 0];
      data.forEach((value, i) => {
        if (i % 4 < 3) sums[i % 4] += value;
      });
      return sums.map((sum) => sum / (data.length / 4));
    }),
  );
};
image.src = `data:image/png;base64,${picture}`;
