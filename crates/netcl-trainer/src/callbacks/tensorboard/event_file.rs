//! An event file of TensorBoard.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::proto::{Message, framed};
use super::wrong_image;
use crate::callbacks::create;
use crate::error::Result;

/// Buckets of a histogram.
const BUCKETS: usize = 64;

/// An event file, written record by record: a process that is killed leaves every record that it wrote.
///
/// ```
/// use netcl_trainer::callbacks::EventFile;
///
/// let folder = std::env::temp_dir().join(format!("netcl-events-{}", std::process::id()));
/// let mut file = EventFile::create(&folder)?;
/// file.scalars(1, [("loss", 0.5)])?;
/// file.histogram("weights", 1, &[0.0, 0.5, 1.0])?;
/// file.text("about", 1, "a **run**")?;
/// file.close()?;
/// # std::fs::remove_dir_all(&folder).map_err(|reason| netcl_io::Error::Write { path: folder, reason })?;
/// # Ok::<(), netcl_trainer::Error>(())
/// ```
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

/// An image: rows of pixels, each of 1 (grey), 3 (RGB) or 4 (RGBA) bytes.
#[derive(Clone, Copy, Debug)]
pub struct Image<'i> {
    /// The number of rows.
    pub height: usize,
    /// The number of pixels in a row.
    pub width: usize,
    /// Bytes per pixel.
    pub channels: usize,
    /// All bytes.
    pub pixels: &'i [u8],
}

impl EventFile {
    /// A new file in a folder, which is made; files of other runs stay.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(folder: &Path) -> Result<EventFile> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = now();
        let (seconds, process, count) = (now as u64, std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // TensorBoard reads the files of a folder in the order of their names.
        let path = folder.join(format!("events.out.tfevents.{seconds:010}.netcl.{process}.{count}"));
        let mut file = EventFile { file: create(&path)?, path };
        file.write(Message::new().double(1, now).bytes(3, "brain.Event:2"))?;
        Ok(file)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Points of curves.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn scalars<'s>(&mut self, step: i64, values: impl IntoIterator<Item = (&'s str, f64)>) -> Result<()> {
        let value = |(tag, value): (&str, f64)| Message::new().bytes(1, tag).float(2, value as f32);
        self.summary(step, values.into_iter().map(value))
    }

    /// How values are distributed, in buckets of equal width. Values that are not finite are left out.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn histogram(&mut self, tag: &str, step: i64, values: &[f64]) -> Result<()> {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let (min, max) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let count = finite().count();
        let (min, max) = if count == 0 { (0.0, 0.0) } else { (min, max) };
        let buckets = if min < max { BUCKETS } else { 1 };
        // Divided before it is subtracted: the widest range is more than a float holds.
        let width = max / buckets as f64 - min / buckets as f64;
        let mut counts = vec![0.0; buckets];
        finite().for_each(|value| counts[(((value - min) / width) as usize).min(buckets - 1)] += 1.0);
        let mut limits: Vec<f64> = (1..=buckets).map(|bucket| min + width * bucket as f64).collect();
        if let Some(last) = limits.last_mut() {
            *last = if min < max { max } else { max.next_up() };
        }
        // The first bucket has its left end as the limit of an empty one before it.
        limits.insert(0, min);
        counts.insert(0, 0.0);
        let histogram = Message::new()
            .double(1, min)
            .double(2, max)
            .double(3, count as f64)
            .double(4, finite().sum())
            .double(5, finite().map(|value| value * value).sum())
            .doubles(6, &limits)
            .doubles(7, &counts);
        self.summary(step, [Message::new().bytes(1, tag).bytes(5, histogram)])
    }

    /// A picture.
    ///
    /// # Errors
    /// If the bytes are not those of such an image, or it cannot be written.
    pub fn image(&mut self, tag: &str, step: i64, image: Image<'_>) -> Result<()> {
        let Image { height, width, channels, pixels } = image;
        let color = match channels {
            1 => png::ColorType::Grayscale,
            3 => png::ColorType::Rgb,
            4 => png::ColorType::Rgba,
            _ => return Err(wrong_image(format!("image {tag:?} has {channels} channels, but must have 1, 3 or 4"))),
        };
        let size = height.checked_mul(width).and_then(|size| size.checked_mul(channels));
        let (Some(size), Ok(w), Ok(h)) = (size, u32::try_from(width), u32::try_from(height)) else {
            return Err(wrong_image(format!("image {tag:?} of {height} x {width} pixels is too large")));
        };
        if size != pixels.len() || size == 0 {
            let bytes = pixels.len();
            return Err(wrong_image(format!(
                "image {tag:?} of {height} x {width} x {channels} needs {size} bytes, got {bytes}"
            )));
        }
        let mut encoded = Vec::new();
        let mut encoder = png::Encoder::new(&mut encoded, w, h);
        encoder.set_color(color);
        encoder
            .write_header()
            .and_then(|mut writer| writer.write_image_data(pixels))
            .map_err(|error| wrong_image(format!("image {tag:?} cannot be encoded: {error}")))?;
        let image = Message::new().int(1, i64::from(h)).int(2, i64::from(w)).int(3, channels as i64).bytes(4, encoded);
        self.summary(step, [Message::new().bytes(1, tag).bytes(4, image)])
    }

    /// A text, which TensorBoard shows as Markdown.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn text(&mut self, tag: &str, step: i64, text: &str) -> Result<()> {
        const DT_STRING: i64 = 7;
        let shape = Message::new().bytes(2, Message::new().int(1, 1));
        let tensor = Message::new().int(1, DT_STRING).bytes(2, shape).bytes(8, text);
        let metadata = Message::new().bytes(1, Message::new().bytes(1, "text"));
        self.summary(step, [Message::new().bytes(1, tag).bytes(9, metadata).bytes(8, tensor)])
    }

    /// Says that what earlier files hold from a step on is void: a run goes on from there.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn restart(&mut self, step: i64) -> Result<()> {
        const START: i64 = 1;
        self.write(Message::new().double(1, now()).int(2, step).bytes(7, Message::new().int(1, START)))
    }

    /// Brings the file to the disk and ends it.
    ///
    /// # Errors
    /// If that fails.
    pub fn close(self) -> Result<()> {
        self.file.sync_all().map_err(|reason| netcl_io::Error::Write { path: self.path, reason }.into())
    }

    fn summary(&mut self, step: i64, values: impl IntoIterator<Item = Message>) -> Result<()> {
        let summary = values.into_iter().fold(Message::new(), |summary, value| summary.bytes(1, value));
        self.write(Message::new().double(1, now()).int(2, step).bytes(5, summary))
    }

    /// One call of the system per record, without a buffer that a crash would lose.
    fn write(&mut self, event: Message) -> Result<()> {
        let written = self.file.write_all(&framed(event.as_ref()));
        written.map_err(|reason| netcl_io::Error::Write { path: self.path.clone(), reason }.into())
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
