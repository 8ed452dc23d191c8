//! Pictures from files, brought into the form of a data set's images.

use std::path::Path;

pub use crate::decode::MAX_PIXELS;
use crate::decode::{self, Colors, Pixels};
use crate::error::{Error, Result};

/// A grey picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Picture {
    /// Reads a PNG or JPEG file, whatever its name says; colours become grey, what is transparent becomes white paper.
    ///
    /// # Errors
    /// If the file cannot be read, is neither, is damaged, or has more than [`MAX_PIXELS`] pixels.
    pub fn read(path: impl AsRef<Path>) -> Result<Picture> {
        let path = path.as_ref();
        Picture::read_up_to(path, MAX_PIXELS)
    }

    /// [`Picture::read`] with another limit. The file's header is compared with it before anything is decoded.
    pub fn read_up_to(path: impl AsRef<Path>, max_pixels: u64) -> Result<Picture> {
        let path = path.as_ref();
        let Pixels { width, height, bytes, .. } = decode::read(path, Colors::Grey, max_pixels)?;
        Ok(Picture { width, height, pixels: bytes })
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
        Pixels { width: self.width, height: self.height, channels: 1, bytes: self.pixels.clone() }.to_png()
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
