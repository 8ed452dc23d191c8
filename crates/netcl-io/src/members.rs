//! Writes the members of a ZIP file one after the other.

use std::io::{Seek, SeekFrom, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Contents begin at a multiple of this, as in PyTorch's files, so that they can be used where they are mapped.
pub(crate) const ALIGNMENT: u16 = 64;

/// A ZIP file of members that are not compressed, as those of np.savez and torch.save: trained weights are noise to a compressor.
/// Without times in it, so that equal weights are equal files.
pub(crate) struct Members<W: Write + Seek> {
    zip: ZipWriter<FirstError<W>>,
}

impl<W: Write + Seek> Members<W> {
    pub(crate) fn new(out: W) -> Members<W> {
        Members { zip: ZipWriter::new(FirstError { out, position: 0, end: 0, error: None }) }
    }

    /// Begins a member of so many bytes.
    pub(crate) fn start(&mut self, name: &str, size: usize) -> std::io::Result<()> {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .with_alignment(ALIGNMENT)
            .large_file(u32::try_from(size).is_err());
        Ok(self.zip.start_file(name, options)?)
    }

    /// Writes the directory.
    pub(crate) fn finish(self) -> std::io::Result<()> {
        let out = self.zip.finish()?;
        out.error.map_or(Ok(()), Err)
    }
}

impl<W: Write + Seek> Write for Members<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.zip.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.zip.flush()
    }
}

/// Keeps the first error of a writer to itself and swallows all that follows: a `ZipWriter` that meets an error prints it to
/// standard error when it is dropped.
struct FirstError<W> {
    out: W,
    position: u64,
    end: u64,
    error: Option<std::io::Error>,
}

impl<W> FirstError<W> {
    /// The answer to the zip writer: that of the writer below, or the one that a writer without errors would give.
    fn answer<T>(&mut self, act: impl FnOnce(&mut W) -> std::io::Result<T>, otherwise: T) -> std::io::Result<T> {
        if self.error.is_some() {
            return Ok(otherwise);
        }
        match act(&mut self.out) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                self.error = Some(error);
                Ok(otherwise)
            }
            done => done,
        }
    }
}

impl<W: Write> Write for FirstError<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.answer(|out| out.write(bytes), bytes.len())?;
        self.position += written as u64;
        self.end = self.end.max(self.position);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.answer(W::flush, ())
    }
}

impl<W: Seek> Seek for FirstError<W> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let place = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
        };
        let place = place.ok_or(std::io::ErrorKind::InvalidInput)?;
        self.position = self.answer(|out| out.seek(SeekFrom::Start(place)), place)?;
        Ok(self.position)
    }
}
