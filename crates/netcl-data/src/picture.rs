//! Pictures from files, brought into the form of a data set's images.

use std::fs::File;
use std::io::{Cursor, Read};
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

/// How many pixels a picture may have unless the caller allows more: a few bytes of a file can claim any size.
pub const MAX_PIXELS: u64 = 100_000_000;

/// The first bytes of a PNG file.
const PNG: &[u8] = b"\x89PNG";
/// The first bytes of a JPEG file.
const JPEG: &[u8] = &[0xff, 0xd8];

impl Picture {
    /// Reads a PNG or JPEG file, whatever its name says; colours become grey, what is transparent becomes white paper.
    ///
    /// # Errors
    /// If the file cannot be read, is neither, is damaged, or has more than [`MAX_PIXELS`] pixels.
    pub fn read(path: &Path) -> Result<Picture> {
        Picture::read_up_to(path, MAX_PIXELS)
    }

    /// [`Picture::read`] with another limit. The file's header is compared with it before anything is decoded.
    pub fn read_up_to(path: &Path, max_pixels: u64) -> Result<Picture> {
        let unreadable = |reason| Error::Read { path: path.to_owned(), reason };
        let malformed = |expected, what| Error::Malformed { path: path.to_owned(), expected, what };
        let mut file = File::open(path).map_err(unreadable)?;
        // The signature first: what is no picture is not read to its end, which a device does not have.
        let mut content = Vec::new();
        Read::by_ref(&mut file).take(PNG.len() as u64).read_to_end(&mut content).map_err(unreadable)?;
        let decode = if content.starts_with(PNG) {
            decode_png
        } else if content.starts_with(JPEG) {
            decode_jpeg
        } else {
            return Err(malformed("PNG or JPEG file", "it starts as neither of them".to_owned()));
        };
        // Four channels of 16 bits, and room for what is no pixel.
        let longest = max_pixels.saturating_mul(8).saturating_add(16 << 20);
        file.take(longest).read_to_end(&mut content).map_err(unreadable)?;
        if content.len() as u64 > longest {
            let what = format!("it has more than {longest} bytes, too many for {max_pixels} pixels");
            return Err(malformed("usable picture", what));
        }
        decode(&content, max_pixels).map_err(|what| malformed("usable picture", what))
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

    /// The pixels of a decoder, without another copy.
    fn decoded(width: usize, height: usize, pixels: Vec<u8>) -> Result<Picture, String> {
        if pixels.is_empty() || width.checked_mul(height) != Some(pixels.len()) {
            return Err(format!("its {width} x {height} pixels were decoded to {}", pixels.len()));
        }
        Ok(Picture { width, height, pixels })
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
        let (side, paper, corners) = (self.width.max(self.height), self.is_on_paper(), self.corners());
        let background = if paper { corners.into_iter().max() } else { corners.into_iter().min() };
        let means = self.resized([side, side], [height, width], background.unwrap_or(0));
        means.into_iter().map(|mean| if paper { 255.0 - mean } else { mean }.round() as u8).collect()
    }

    /// The picture in the middle of a frame of background, `[height, width]` each, as so many pixels.
    ///
    /// Each new pixel is the mean over the old ones that it covers, wholly or in part: thin strokes do not get lost, and this is
    /// how the digits were made. The frame is only computed with: that of a picture 1 pixel high would not fit into memory.
    fn resized(&self, frame: [usize; 2], size: [usize; 2], background: u8) -> Vec<f64> {
        let rows = coverage(self.height, frame[0], size[0]);
        let columns = coverage(self.width, frame[1], size[1]);
        let area = frame[0] as f64 / size[0] as f64 * (frame[1] as f64 / size[1] as f64);
        let mut out = Vec::with_capacity(rows.len() * columns.len());
        for row in &rows {
            for column in &columns {
                let (mut sum, mut inside) = (0.0, 0.0);
                for &(y, share_y) in row {
                    for &(x, share_x) in column {
                        sum += share_y * share_x * f64::from(self.pixels[y * self.width + x]);
                        inside += share_y * share_x;
                    }
                }
                // Rounding must not make background of a picture that fills its frame.
                let outside = if inside > area * (1.0 - 1e-9) { 0.0 } else { area - inside };
                out.push((sum + outside * f64::from(background)) / (inside + outside));
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

/// For each of `new` pixels along a frame with `old` pixels in its middle: the old pixels that lie under it, with the share of
/// each.
fn coverage(old: usize, frame: usize, new: usize) -> Vec<Vec<(usize, f64)>> {
    let scale = frame as f64 / new as f64;
    let before = frame.saturating_sub(old) / 2;
    let under = |i: usize| {
        let (from, to) = (i as f64 * scale, (i as f64 + 1.0) * scale);
        let (first, last) = ((from as usize).max(before), (to.ceil() as usize).min(before + old));
        let share = |at: usize| (at - before, (to.min(at as f64 + 1.0) - from.max(at as f64)).max(0.0));
        (first..last).map(share).filter(|(_, share)| *share > 1e-9).collect()
    };
    (0..new).map(under).collect()
}

fn decode_png(content: &[u8], max_pixels: u64) -> Result<Picture, String> {
    let mut decoder = png::Decoder::new(Cursor::new(content));
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    // Palettes and 16 bits become 8-bit grey or colours, with or without transparency.
    decoder.set_transformations(Transformations::normalize_to_color8());
    let header = decoder.read_header_info().map_err(|error| error.to_string())?;
    let (width, height) = (header.width as usize, header.height as usize);
    check_size(width, height, max_pixels)?;
    let packed = header.bits_per_pixel() as u128 * width as u128 * height as u128 / 8;
    if packed > content.len() as u128 * DEFLATE_RATIO {
        let length = content.len();
        return Err(format!("its header announces {width} x {height} pixels, more than its {length} bytes can hold"));
    }
    let mut reader = decoder.read_info().map_err(|error| error.to_string())?;
    let size = reader.output_buffer_size().ok_or("it is too large")?;
    let mut samples = Vec::new();
    samples.try_reserve_exact(size).map_err(|_| format!("its {width} x {height} pixels do not fit into memory"))?;
    samples.resize(size, 0);
    let info = reader.next_frame(&mut samples).map_err(|error| error.to_string())?;
    samples.truncate(info.buffer_size());
    let pixels = match info.color_type {
        ColorType::Grayscale => samples,
        ColorType::GrayscaleAlpha => samples.chunks_exact(2).map(|p| on_white(p[0], p[1])).collect(),
        ColorType::Rgb => samples.chunks_exact(3).map(|p| grey(p[0], p[1], p[2])).collect(),
        ColorType::Rgba => samples.chunks_exact(4).map(|p| on_white(grey(p[0], p[1], p[2]), p[3])).collect(),
        ColorType::Indexed => return Err("its palette could not be resolved".to_owned()),
    };
    Picture::decoded(info.width as usize, info.height as usize, pixels)
}

/// Deflate makes at most so many bytes of one.
const DEFLATE_RATIO: u128 = 1032;

fn decode_jpeg(content: &[u8], max_pixels: u64) -> Result<Picture, String> {
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(ColorSpace::Luma)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX));
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(content), options);
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let info = decoder.info().ok_or("it has no header")?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    check_size(width, height, max_pixels)?;
    Picture::decoded(width, height, decoder.decode().map_err(|error| error.to_string())?)
}

fn check_size(width: usize, height: usize, max_pixels: u64) -> Result<(), String> {
    if width as u128 * height as u128 <= u128::from(max_pixels) {
        return Ok(());
    }
    Err(format!(
        "its {width} x {height} pixels are more than the {max_pixels} that are read; shrink it first, or allow more with \
         --max-pixels"
    ))
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
        assert_eq!(line.resized([1, 3], [1, 2], 7), [30.0, 190.0]);
        assert_eq!(line.resized([1, 3], [1, 6], 7), [0.0, 0.0, 90.0, 90.0, 240.0, 240.0]);
        assert_eq!(line.resized([3, 3], [1, 1], 60), [((0.0 + 90.0 + 240.0) + 6.0 * 60.0) / 9.0]);
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
        assert_eq!(decode_png(&content, MAX_PIXELS).unwrap().pixels(), [76, 255]);
    }

    /// 16 x 8 pixels of JPEG, the left half dark and the right half bright.
    const HALVES: &[u8] = include_bytes!("../tests/halves.jpg");

    #[test]
    fn jpeg_files_are_read() {
        let picture = decode_jpeg(HALVES, MAX_PIXELS).unwrap();
        assert_eq!((picture.width, picture.height), (16, 8));
        assert!(picture.pixels()[0] < 40 && picture.pixels()[15] > 200, "{:?}", &picture.pixels()[..16]);
        assert!(decode_jpeg(&HALVES[..40], MAX_PIXELS).is_err());
    }

    /// A PNG of one line, as long as the header says, with the size in its header replaced.
    fn png_that_claims(width: u32, height: u32) -> Vec<u8> {
        let mut content = Picture::from_pixels(8, 1, &[9; 8]).unwrap().to_png().unwrap();
        content[16..20].copy_from_slice(&width.to_be_bytes());
        content[20..24].copy_from_slice(&height.to_be_bytes());
        let mut crc = flate2::Crc::new();
        crc.update(&content[12..29]);
        content[29..33].copy_from_slice(&crc.sum().to_be_bytes());
        content
    }

    #[test]
    fn sizes_are_compared_with_the_limit_before_anything_is_decoded() {
        for (width, height) in [(10_001, 10_000), (16_384, 16_384), (u32::MAX / 2, u32::MAX / 2)] {
            let text = decode_png(&png_that_claims(width, height), MAX_PIXELS).unwrap_err();
            assert!(text.contains(&format!("{width} x {height}")) && text.contains("--max-pixels"), "{text}");
        }
        let text = decode_png(&png_that_claims(10_000, 10_000), MAX_PIXELS).unwrap_err();
        assert!(text.contains("more than its") && text.contains("bytes can hold"), "{text}");
        assert!(decode_png(&png_that_claims(8, 1), 8).is_ok() && decode_png(&png_that_claims(8, 1), 7).is_err());
        let mut jpeg = HALVES.to_vec();
        let frame = jpeg.windows(4).position(|window| window == [0, 8, 0, 16]).expect("height and width");
        jpeg[frame..frame + 4].copy_from_slice(&[255, 255, 255, 255]);
        let text = decode_jpeg(&jpeg, MAX_PIXELS).unwrap_err();
        assert!(text.contains("65535 x 65535") && text.contains("--max-pixels"), "{text}");
        assert!(decode_jpeg(HALVES, 127).is_err() && decode_jpeg(HALVES, 128).is_ok());
    }

    #[test]
    fn a_very_wide_picture_needs_no_square_in_memory() {
        let line = Picture::from_pixels(1 << 20, 1, &vec![255; 1 << 20]).unwrap();
        assert_eq!(line.to_input(8, 8), [0; 64], "bright corners are paper");
        let line = Picture::from_pixels(1 << 20, 1, &vec![0; 1 << 20]).unwrap();
        assert_eq!(line.to_input(8, 8), [0; 64]);
    }

    #[test]
    #[cfg(unix)]
    fn a_device_without_an_end_is_no_picture() {
        let text = Picture::read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(text.contains("is no PNG or JPEG file"), "{text}");
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
