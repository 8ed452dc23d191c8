//! Pictures from files, brought into the form of a data set's images.

use std::io::Cursor;
use std::path::Path;

use png::{BitDepth, ColorType, Transformations};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use crate::error::{Error, Result};

/// A grey picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

/// A picture with a longer side is refused: a few bytes of a file can claim any size.
const LONGEST: usize = 1 << 14;

impl Picture {
    /// Reads a PNG or JPEG file, whatever its name says; colours become grey, what is transparent becomes white paper.
    pub fn read(path: &Path) -> Result<Picture> {
        let content = std::fs::read(path).map_err(|reason| Error::Read { path: path.to_owned(), reason })?;
        let malformed = |what: String| Error::Malformed { path: path.to_owned(), expected: "usable picture", what };
        let picture = if content.starts_with(b"\x89PNG") {
            decode_png(&content)
        } else if content.starts_with(&[0xff, 0xd8]) {
            decode_jpeg(&content)
        } else {
            let what = "it starts as neither of them".to_owned();
            return Err(Error::Malformed { path: path.to_owned(), expected: "PNG or JPEG file", what });
        };
        picture.map_err(malformed)
    }

    /// A picture of the given pixels, row by row.
    ///
    /// # Errors
    /// If there are not `width * height` of them, or none at all.
    pub fn from_pixels(width: usize, height: usize, pixels: &[u8]) -> Result<Picture> {
        if pixels.is_empty() || width.checked_mul(height) != Some(pixels.len()) {
            let what = format!("{} pixels are no picture of {width} x {height}", pixels.len());
            return Err(Error::Argument { what });
        }
        Ok(Picture { width, height, pixels: pixels.to_vec() })
    }

    fn corners(&self) -> [u8; 4] {
        let last = self.pixels.len() - 1;
        [0, self.width - 1, last + 1 - self.width, last].map(|at| self.pixels[at])
    }

    /// Whether its corners are bright: dark ink on paper, where data sets have bright ink on black.
    pub fn is_on_paper(&self) -> bool {
        self.corners().iter().map(|&pixel| u32::from(pixel)).sum::<u32>() > 4 * 127
    }

    /// The pixels of a data set's image of this picture: bright on dark, squared with background, shrunk or enlarged to
    /// `height` x `width`.
    pub fn to_input(&self, height: usize, width: usize) -> Vec<u8> {
        let mut picture = self.clone();
        if self.is_on_paper() {
            picture.pixels.iter_mut().for_each(|pixel| *pixel = 255 - *pixel);
        }
        picture.squared().resized(height, width)
    }

    /// With background beside or above and below, so that it is as wide as high.
    fn squared(self) -> Picture {
        if self.width == self.height {
            return self;
        }
        let side = self.width.max(self.height);
        let background = self.corners().into_iter().min().unwrap_or(0);
        let (left, top) = ((side - self.width) / 2, (side - self.height) / 2);
        let mut pixels = vec![background; side * side];
        for (y, row) in self.pixels.chunks_exact(self.width).enumerate() {
            let start = (y + top) * side + left;
            pixels[start..start + self.width].copy_from_slice(row);
        }
        Picture { width: side, height: side, pixels }
    }

    /// Each new pixel is the mean over the old ones that it covers, wholly or in part: thin strokes do not get lost, and this is
    /// how the digits were made.
    fn resized(&self, height: usize, width: usize) -> Vec<u8> {
        let (rows, columns) = (coverage(self.height, height), coverage(self.width, width));
        let mut out = Vec::with_capacity(height * width);
        for row in &rows {
            for column in &columns {
                let (mut sum, mut area) = (0.0, 0.0);
                for &(y, share_y) in row {
                    for &(x, share_x) in column {
                        sum += share_y * share_x * f64::from(self.pixels[y * self.width + x]);
                        area += share_y * share_x;
                    }
                }
                out.push((sum / area).round() as u8);
            }
        }
        out
    }

    /// Its pixels, row by row.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// A picture `zoom` times as wide and high, each pixel a square.
    pub fn enlarged(&self, zoom: usize) -> Picture {
        let (width, height) = (self.width * zoom.max(1), self.height * zoom.max(1));
        let pixels =
            (0..width * height).map(|i| self.pixels[(i / width / zoom.max(1)) * self.width + i % width / zoom.max(1)]);
        Picture { width, height, pixels: pixels.collect() }
    }

    /// The content of a PNG file with this picture.
    pub fn to_png(&self) -> Result<Vec<u8>> {
        let failed = |error: png::EncodingError| Error::Argument {
            what: format!("the picture of {} x {} could not be encoded as PNG: {error}", self.width, self.height),
        };
        let mut content = Vec::new();
        // Longer sides than 32 bits can count are refused by the encoder, like 0.
        let size = |side: usize| u32::try_from(side).unwrap_or(0);
        let mut encoder = png::Encoder::new(&mut content, size(self.width), size(self.height));
        encoder.set_color(ColorType::Grayscale);
        encoder.set_depth(BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(failed)?;
        writer.write_image_data(&self.pixels).map_err(failed)?;
        writer.finish().map_err(failed)?;
        Ok(content)
    }
}

/// For each of `new` pixels in a line: the old pixels that lie under it, with the share of each.
fn coverage(old: usize, new: usize) -> Vec<Vec<(usize, f64)>> {
    let scale = old as f64 / new as f64;
    let under = |i: usize| {
        let (from, to) = (i as f64 * scale, (i as f64 + 1.0) * scale);
        let last = (to.ceil() as usize).min(old);
        let share = |at: usize| (at, (to.min(at as f64 + 1.0) - from.max(at as f64)).max(0.0));
        (from as usize..last).map(share).filter(|(_, share)| *share > 1e-9).collect()
    };
    (0..new).map(under).collect()
}

fn decode_png(content: &[u8]) -> Result<Picture, String> {
    let mut decoder = png::Decoder::new(Cursor::new(content));
    // Palettes and 16 bits become 8-bit grey or colours, with or without transparency.
    decoder.set_transformations(Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(|error| error.to_string())?;
    check_size(reader.info().width as usize, reader.info().height as usize)?;
    let mut buffer = vec![0; reader.output_buffer_size().ok_or("it is too large")?];
    let info = reader.next_frame(&mut buffer).map_err(|error| error.to_string())?;
    let samples = &buffer[..info.buffer_size()];
    let pixels = match info.color_type {
        ColorType::Grayscale => samples.to_vec(),
        ColorType::GrayscaleAlpha => samples.chunks_exact(2).map(|p| on_white(p[0], p[1])).collect(),
        ColorType::Rgb => samples.chunks_exact(3).map(|p| grey(p[0], p[1], p[2])).collect(),
        ColorType::Rgba => samples.chunks_exact(4).map(|p| on_white(grey(p[0], p[1], p[2]), p[3])).collect(),
        ColorType::Indexed => return Err("its palette could not be resolved".to_owned()),
    };
    Picture::from_pixels(info.width as usize, info.height as usize, &pixels).map_err(|error| error.to_string())
}

fn decode_jpeg(content: &[u8]) -> Result<Picture, String> {
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(ColorSpace::Luma)
        .set_max_width(LONGEST)
        .set_max_height(LONGEST);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(content), options);
    let pixels = decoder.decode().map_err(|error| error.to_string())?;
    let info = decoder.info().ok_or("it has no header")?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    Picture::from_pixels(width, height, &pixels).map_err(|error| error.to_string())
}

fn check_size(width: usize, height: usize) -> Result<(), String> {
    if width.max(height) <= LONGEST {
        return Ok(());
    }
    Err(format!("its {width} x {height} pixels are more than the {LONGEST} x {LONGEST} that are read; shrink it first"))
}

/// What the eye sees of a colour (ITU-R BT.601).
fn grey(red: u8, green: u8, blue: u8) -> u8 {
    ((299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue) + 500) / 1000) as u8
}

/// A transparent pixel before a white wall.
fn on_white(pixel: u8, opacity: u8) -> u8 {
    let (pixel, opacity) = (u32::from(pixel), u32::from(opacity));
    ((pixel * opacity + 255 * (255 - opacity) + 127) / 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_comes_back_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("digit.data");
        let pixels: Vec<u8> = (0..64).map(|i| if i % 8 == 4 { 240 } else { 3 }).collect();
        let picture = Picture::from_pixels(8, 8, &pixels).unwrap();
        std::fs::write(&path, picture.to_png().unwrap()).unwrap();
        assert_eq!(Picture::read(&path).unwrap(), picture);
        assert_eq!(picture.to_input(8, 8), pixels);
        std::fs::write(&path, picture.enlarged(5).to_png().unwrap()).unwrap();
        assert_eq!(Picture::read(&path).unwrap().to_input(8, 8), pixels);
    }

    #[test]
    fn ink_on_paper_is_inverted_and_wide_pictures_are_squared() {
        let paper = Picture::from_pixels(4, 2, &[255, 255, 255, 255, 255, 0, 0, 255]).unwrap();
        assert!(paper.is_on_paper());
        let input = paper.to_input(4, 4);
        assert_eq!(input[..4], [0; 4]);
        assert_eq!(input[8..12], [0, 255, 255, 0]);
    }

    #[test]
    fn sizes_that_do_not_divide_are_averaged() {
        let line = Picture::from_pixels(3, 1, &[0, 90, 240]).unwrap();
        assert_eq!(line.resized(1, 2), [30, 190]);
        assert_eq!(line.resized(1, 6), [0, 0, 90, 90, 240, 240]);
        assert_eq!(line.enlarged(2).pixels(), [0, 0, 90, 90, 240, 240, 0, 0, 90, 90, 240, 240]);
    }

    #[test]
    fn colours_and_transparency_become_grey() {
        assert_eq!((grey(255, 255, 255), grey(255, 0, 0), grey(0, 0, 0)), (255, 76, 0));
        assert_eq!((on_white(0, 0), on_white(0, 255), on_white(100, 255)), (255, 0, 100));
        let mut content = Vec::new();
        let mut encoder = png::Encoder::new(&mut content, 2, 1);
        encoder.set_color(ColorType::Rgba);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&[255, 0, 0, 255, 1, 2, 3, 0]).unwrap();
        writer.finish().unwrap();
        assert_eq!(decode_png(&content).unwrap().pixels(), [76, 255]);
    }

    /// 16 x 8 pixels of JPEG, the left half dark and the right half bright.
    const JPEG: &[u8] = include_bytes!("../tests/halves.jpg");

    #[test]
    fn jpeg_files_are_read() {
        let picture = decode_jpeg(JPEG).unwrap();
        assert_eq!((picture.width, picture.height), (16, 8));
        assert!(picture.pixels()[0] < 40 && picture.pixels()[15] > 200, "{:?}", &picture.pixels()[..16]);
        assert!(decode_jpeg(&JPEG[..40]).is_err());
    }

    #[test]
    fn files_that_are_no_pictures_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        assert!(Picture::read(&path).unwrap_err().to_string().contains("cannot be read"));
        std::fs::write(&path, b"hello").unwrap();
        assert!(Picture::read(&path).unwrap_err().to_string().contains("is no PNG or JPEG file"));
        let whole = Picture::from_pixels(2, 2, &[0; 4]).unwrap().to_png().unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(Picture::read(&path).unwrap_err().to_string().contains("a.png"));
        assert!(Picture::from_pixels(3, 2, &[0; 4]).is_err());
    }
}
