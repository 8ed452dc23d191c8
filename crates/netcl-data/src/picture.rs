//! Pictures from files, brought into the form of a data set's images.

use std::path::Path;

use image::imageops::{FilterType, replace, resize, thumbnail};
use image::{GrayImage, ImageError, ImageReader, Luma};

use crate::error::{Error, Result};

/// A grey picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    image: GrayImage,
}

impl Picture {
    /// Reads a PNG or JPEG file, whatever its name says; colours become grey.
    pub fn read(path: &Path) -> Result<Picture> {
        let read = |source| Error::Read { path: path.to_owned(), source };
        let reader = ImageReader::open(path).map_err(read)?.with_guessed_format().map_err(read)?;
        let image = reader.decode().map_err(|error| match error {
            ImageError::IoError(source) if source.kind() != std::io::ErrorKind::UnexpectedEof => read(source),
            ImageError::Limits(_) => {
                let what = "it is too large; shrink it first".to_owned();
                Error::Malformed { path: path.to_owned(), expected: "usable picture", what }
            }
            other => Error::Malformed { path: path.to_owned(), expected: "PNG or JPEG file", what: other.to_string() },
        })?;
        Ok(Picture { image: image.to_luma8() })
    }

    /// A picture of the given pixels, row by row.
    ///
    /// # Errors
    /// If there are not `width * height` of them.
    pub fn from_pixels(width: usize, height: usize, pixels: &[u8]) -> Result<Picture> {
        let image = u32::try_from(width)
            .ok()
            .zip(u32::try_from(height).ok())
            .and_then(|(width, height)| GrayImage::from_raw(width, height, pixels.to_vec()))
            .filter(|_| !pixels.is_empty() && pixels.len() == width * height);
        match image {
            Some(image) => Ok(Picture { image }),
            None => {
                Err(Error::Argument { what: format!("{} pixels are no picture of {width} x {height}", pixels.len()) })
            }
        }
    }

    /// Whether its corners are bright: dark ink on paper, where data sets have bright ink on black.
    pub fn is_on_paper(&self) -> bool {
        let (right, bottom) = (self.image.width().saturating_sub(1), self.image.height().saturating_sub(1));
        let corners = [(0, 0), (right, 0), (0, bottom), (right, bottom)];
        let sum: u32 = corners.iter().map(|&(x, y)| u32::from(self.image.get_pixel(x, y).0[0])).sum();
        sum > 4 * 127
    }

    /// The pixels of a data set's image of this picture: bright on dark, squared with background, shrunk or enlarged to
    /// `height` x `width`.
    pub fn to_input(&self, height: usize, width: usize) -> Vec<u8> {
        let mut image = self.image.clone();
        if self.is_on_paper() {
            image::imageops::invert(&mut image);
        }
        let side = image.width().max(image.height());
        if image.width() != image.height() {
            let mut square = GrayImage::from_pixel(side, side, background(&image));
            let (x, y) = ((side - image.width()) / 2, (side - image.height()) / 2);
            replace(&mut square, &image, i64::from(x), i64::from(y));
            image = square;
        }
        let (width, height) = (width as u32, height as u32);
        if side > width.min(height) {
            // Each pixel is the mean of those it stands for: thin strokes do not get lost, and this is how digits were made.
            thumbnail(&image, width, height).into_raw()
        } else {
            resize(&image, width, height, FilterType::Triangle).into_raw()
        }
    }

    /// Writes it as a PNG file, `zoom` times as large.
    pub fn write_png(&self, path: &Path, zoom: u32) -> Result<()> {
        let zoom = zoom.max(1);
        let large = resize(&self.image, self.image.width() * zoom, self.image.height() * zoom, FilterType::Nearest);
        large.save_with_format(path, image::ImageFormat::Png).map_err(|error| Error::Malformed {
            path: path.to_owned(),
            expected: "place for a PNG file",
            what: error.to_string(),
        })
    }

    /// The content of a PNG file with this picture.
    pub fn to_png(&self) -> Result<Vec<u8>> {
        let mut content = std::io::Cursor::new(Vec::new());
        self.image
            .write_to(&mut content, image::ImageFormat::Png)
            .map_err(|error| Error::Argument { what: format!("the picture could not be encoded as PNG: {error}") })?;
        Ok(content.into_inner())
    }
}

/// The darkest corner.
fn background(image: &GrayImage) -> Luma<u8> {
    let (right, bottom) = (image.width() - 1, image.height() - 1);
    let corners = [(0, 0), (right, 0), (0, bottom), (right, bottom)];
    Luma([corners.iter().map(|&(x, y)| image.get_pixel(x, y).0[0]).min().unwrap_or(0)])
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
        picture.write_png(&path, 1).unwrap();
        assert_eq!(Picture::read(&path).unwrap(), picture);
        assert_eq!(picture.to_input(8, 8), pixels);
        std::fs::write(&path, picture.to_png().unwrap()).unwrap();
        assert_eq!(Picture::read(&path).unwrap(), picture);
        picture.write_png(&path, 5).unwrap();
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
