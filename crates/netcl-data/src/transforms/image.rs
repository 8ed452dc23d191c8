//! Images as transforms take them.

use crate::array::Array;
use crate::error::{Result, argument};

/// An image of shape `[channels, height, width]` in float32, channel by channel. Colours go from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    pub(super) shape: [usize; 3],
    pub(super) pixels: Vec<f32>,
}

impl Image {
    /// Pixels with their shape.
    ///
    /// # Errors
    /// If the shape has another number of pixels, or none.
    pub fn new(pixels: Vec<f32>, shape: [usize; 3]) -> Result<Image> {
        if pixels.is_empty() || crate::array::count(&shape) != Some(pixels.len()) {
            return argument(format!("Image: {} pixels are no image of shape {shape:?}", pixels.len()));
        }
        Ok(Image { shape, pixels })
    }

    /// An image of an array of three axes: bytes are divided by 255, float32 is taken as it is.
    ///
    /// # Errors
    /// If it has other axes or elements.
    pub fn from_array(array: &Array) -> Result<Image> {
        let &[channels, height, width] = array.shape() else {
            return argument(format!("Image: an array of shape {:?} is not [channels, height, width]", array.shape()));
        };
        let pixels = match (array.slice::<u8>(), array.slice::<f32>()) {
            (Some(bytes), _) => bytes.iter().map(|&byte| f32::from(byte) / 255.0).collect(),
            (_, Some(floats)) => floats.to_vec(),
            _ => return argument(format!("Image: pixels are U8 or F32, not {:?}; convert them first", array.dtype())),
        };
        Image::new(pixels, [channels, height, width])
    }

    /// The image as an array.
    pub fn into_array(self) -> Array {
        // Never fails: the shape was compared with the pixels when the image was made.
        Array::new(self.pixels, &self.shape).unwrap_or_else(|_| Array::line(Vec::<f32>::new()))
    }

    /// Channels, height and width.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The pixels, channel by channel, row by row.
    pub fn pixels(&self) -> &[f32] {
        &self.pixels
    }

    /// The pixels of each channel, to be changed.
    pub(super) fn planes(&mut self) -> std::slice::ChunksExactMut<'_, f32> {
        let size = self.shape[1] * self.shape[2];
        self.pixels.chunks_exact_mut(size)
    }
}
