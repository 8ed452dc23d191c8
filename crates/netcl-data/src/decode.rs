//! PNG and JPEG files to pixels, with memory bounded by what the caller allows.

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use png::{BitDepth, ColorType, Transformations};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use crate::error::{Error, Result};

/// How many pixels a picture may have unless the caller allows more: a few bytes of a file can claim any size.
pub const MAX_PIXELS: u64 = 100_000_000;

/// The first bytes of a PNG file.
const PNG: &[u8] = b"\x89PNG";
/// The first bytes of a JPEG file.
const JPEG: &[u8] = &[0xff, 0xd8];

/// What the pixels of a file become; what is transparent becomes white.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colors {
    /// One byte: what the eye sees of a colour (ITU-R BT.601).
    Grey,
    /// Red, green and blue.
    #[default]
    Rgb,
}

impl Colors {
    /// Bytes per pixel.
    pub fn channels(self) -> usize {
        if self == Colors::Grey { 1 } else { 3 }
    }
}

/// The pixels of a file, row by row, the channels of a pixel side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bytes per pixel: 1 or 3.
    pub channels: usize,
    /// `width * height * channels` bytes.
    pub bytes: Vec<u8>,
}

impl Pixels {
    fn checked(width: usize, height: usize, channels: usize, bytes: Vec<u8>) -> Result<Pixels, String> {
        if bytes.is_empty() || crate::array::count(&[width, height, channels]) != Some(bytes.len()) {
            return Err(format!("its {width} x {height} pixels were decoded to {} bytes", bytes.len()));
        }
        Ok(Pixels { width, height, channels, bytes })
    }

    /// Pixels given channel by channel.
    ///
    /// # Errors
    /// If there are other bytes than those of `[channels, height, width]`, or none.
    pub fn from_planes(planes: &[u8], [channels, height, width]: [usize; 3]) -> Result<Pixels> {
        let mut bytes = vec![0; planes.len()];
        for (channel, plane) in planes.chunks_exact((width * height).max(1)).enumerate() {
            for (target, &byte) in bytes.iter_mut().skip(channel).step_by(channels.max(1)).zip(plane) {
                *target = byte;
            }
        }
        Pixels::checked(width, height, channels, bytes).map_err(|what| Error::Argument { what })
    }

    /// The content of a PNG file with these pixels.
    ///
    /// # Errors
    /// If they have neither one channel nor three, or sides that PNG cannot have.
    pub fn to_png(&self) -> Result<Vec<u8>> {
        let Pixels { width, height, channels, .. } = *self;
        let failed = |reason: &dyn std::fmt::Display| Error::Argument {
            what: format!(
                "a picture of {width} x {height} with {channels} channels could not be encoded as PNG: {reason}"
            ),
        };
        let color = match channels {
            1 => ColorType::Grayscale,
            3 => ColorType::Rgb,
            _ => return Err(failed(&"1 or 3 are possible")),
        };
        let mut content = Vec::new();
        // Longer sides than 32 bits can count are refused by the encoder, like 0.
        let size = |side: usize| u32::try_from(side).unwrap_or(0);
        let mut encoder = png::Encoder::new(&mut content, size(width), size(height));
        encoder.set_color(color);
        encoder.set_depth(BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(|error| failed(&error))?;
        writer.write_image_data(&self.bytes).map_err(|error| failed(&error))?;
        writer.finish().map_err(|error| failed(&error))?;
        Ok(content)
    }

    /// The pixels channel by channel, as networks take them: shape `[channels, height, width]`.
    pub fn into_planes(self) -> Vec<u8> {
        if self.channels == 1 {
            return self.bytes;
        }
        let mut planes = vec![0; self.bytes.len()];
        let size = self.bytes.len() / 3;
        // All channels in one pass over the pixels.
        let (red, rest) = planes.split_at_mut(size);
        let (green, blue) = rest.split_at_mut(size);
        for (((pixel, red), green), blue) in self.bytes.chunks_exact(3).zip(red).zip(green).zip(blue) {
            (*red, *green, *blue) = (pixel[0], pixel[1], pixel[2]);
        }
        planes
    }
}

/// Reads a PNG or JPEG file, whatever its name says. The file's header is compared with the limit before anything is
/// decoded.
///
/// # Errors
/// If the file cannot be read, is neither, is damaged, or has more than `max_pixels` pixels.
pub fn read(path: &Path, colors: Colors, max_pixels: u64) -> Result<Pixels> {
    let unreadable = |reason| Error::Read { path: path.to_owned(), reason };
    let malformed = |expected, what| Error::Malformed { path: path.to_owned(), expected, what };
    let mut file = File::open(path).map_err(unreadable)?;
    // The signature first: what is no picture is not read to its end, which a device does not have.
    let mut content = Vec::new();
    Read::by_ref(&mut file).take(PNG.len() as u64).read_to_end(&mut content).map_err(unreadable)?;
    if !content.starts_with(PNG) && !content.starts_with(JPEG) {
        return Err(malformed("PNG or JPEG file", "it starts as neither of them".to_owned()));
    }
    // Four channels of 16 bits, and room for what is no pixel.
    let longest = max_pixels.saturating_mul(8).saturating_add(16 << 20);
    file.take(longest).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > longest {
        let what = format!("it has more than {longest} bytes, too many for {max_pixels} pixels");
        return Err(malformed("usable picture", what));
    }
    decode(&content, colors, max_pixels).map_err(|what| malformed("usable picture", what))
}

/// Decodes the content of a PNG or JPEG file.
///
/// # Errors
/// A text that says what is wrong.
pub fn decode(content: &[u8], colors: Colors, max_pixels: u64) -> Result<Pixels, String> {
    if content.starts_with(PNG) {
        decode_png(content, colors, max_pixels)
    } else if content.starts_with(JPEG) {
        decode_jpeg(content, colors, max_pixels)
    } else {
        Err("it starts as neither PNG nor JPEG".to_owned())
    }
}

fn decode_png(content: &[u8], colors: Colors, max_pixels: u64) -> Result<Pixels, String> {
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
    let bytes = match (info.color_type, colors) {
        (ColorType::Grayscale, Colors::Grey) | (ColorType::Rgb, Colors::Rgb) => samples,
        (ColorType::Grayscale, Colors::Rgb) => samples.iter().flat_map(|&p| [p; 3]).collect(),
        (ColorType::GrayscaleAlpha, _) => {
            let channels = colors.channels();
            samples.chunks_exact(2).flat_map(|p| std::iter::repeat_n(on_white(p[0], p[1]), channels)).collect()
        }
        (ColorType::Rgb, Colors::Grey) => samples.chunks_exact(3).map(|p| grey(p[0], p[1], p[2])).collect(),
        (ColorType::Rgba, Colors::Grey) => {
            samples.chunks_exact(4).map(|p| on_white(grey(p[0], p[1], p[2]), p[3])).collect()
        }
        (ColorType::Rgba, Colors::Rgb) => {
            samples.chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]].map(|color| on_white(color, p[3]))).collect()
        }
        (ColorType::Indexed, _) => return Err("its palette could not be resolved".to_owned()),
    };
    Pixels::checked(info.width as usize, info.height as usize, colors.channels(), bytes)
}

/// Deflate makes at most so many bytes of one.
const DEFLATE_RATIO: u128 = 1032;

fn decode_jpeg(content: &[u8], colors: Colors, max_pixels: u64) -> Result<Pixels, String> {
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(if colors == Colors::Grey { ColorSpace::Luma } else { ColorSpace::RGB })
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX));
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(content), options);
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let info = decoder.info().ok_or("it has no header")?;
    let (width, height) = (usize::from(info.width), usize::from(info.height));
    check_size(width, height, max_pixels)?;
    Pixels::checked(width, height, colors.channels(), decoder.decode().map_err(|error| error.to_string())?)
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
    use crate::picture::Picture;

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
        assert_eq!(decode(&content, Colors::Grey, MAX_PIXELS).unwrap().bytes, [76, 255]);
        let pixels = decode(&content, Colors::Rgb, MAX_PIXELS).unwrap();
        assert_eq!(pixels.bytes, [255, 0, 0, 255, 255, 255]);
        assert_eq!(pixels.into_planes(), [255, 255, 0, 255, 0, 255]);
    }

    /// 16 x 8 pixels of JPEG, the left half dark and the right half bright.
    const HALVES: &[u8] = include_bytes!("../tests/halves.jpg");

    #[test]
    fn jpeg_files_are_read() {
        let picture = decode(HALVES, Colors::Grey, MAX_PIXELS).unwrap();
        assert_eq!((picture.width, picture.height), (16, 8));
        assert!(picture.bytes[0] < 40 && picture.bytes[15] > 200, "{:?}", &picture.bytes[..16]);
        let color = decode(HALVES, Colors::Rgb, MAX_PIXELS).unwrap();
        assert_eq!((color.channels, color.bytes.len()), (3, 16 * 8 * 3));
        assert!(decode(&HALVES[..40], Colors::Grey, MAX_PIXELS).is_err());
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
            let text = decode(&png_that_claims(width, height), Colors::Grey, MAX_PIXELS).unwrap_err();
            assert!(text.contains(&format!("{width} x {height}")) && text.contains("--max-pixels"), "{text}");
        }
        let text = decode(&png_that_claims(10_000, 10_000), Colors::Grey, MAX_PIXELS).unwrap_err();
        assert!(text.contains("more than its") && text.contains("bytes can hold"), "{text}");
        assert!(
            decode(&png_that_claims(8, 1), Colors::Grey, 8).is_ok()
                && decode(&png_that_claims(8, 1), Colors::Grey, 7).is_err()
        );
        let mut jpeg = HALVES.to_vec();
        let frame = jpeg.windows(4).position(|window| window == [0, 8, 0, 16]).expect("height and width");
        jpeg[frame..frame + 4].copy_from_slice(&[255, 255, 255, 255]);
        let text = decode(&jpeg, Colors::Grey, MAX_PIXELS).unwrap_err();
        assert!(text.contains("65535 x 65535") && text.contains("--max-pixels"), "{text}");
        assert!(decode(HALVES, Colors::Grey, 127).is_err() && decode(HALVES, Colors::Grey, 128).is_ok());
    }
}
