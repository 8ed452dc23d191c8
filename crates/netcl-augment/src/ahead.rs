//! A loader whose batches arrive on a device ahead of the loop that takes them.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use netcl_core::backend::Queue;
use netcl_data::{Epoch, LoaderState, Sample};

use crate::error::{Error, Result};
use crate::upload::{Uploaded, Uploader};

/// Batches that wait beside the one under way.
const READY: usize = 1;

/// The batches of an epoch, each made ready (uploaded, changed) by a thread while the loop works on the one before.
///
/// Errors of the loader come in their place, and the loop may go on after one. Dropping it ends the thread and the epoch's workers; that waits
/// for the batch at hand.
pub struct OnDevice<T = Uploaded> {
    /// `None` only while dropping.
    batches: Option<Receiver<(Result<T>, LoaderState)>>,
    thread: Option<JoinHandle<()>>,
    state: LoaderState,
}

/// The batches of an epoch on a queue's device: two of them are on their way or ready while the loop works on one.
///
/// ```
/// use netcl_augment::on_device;
/// use netcl_core::device::manager;
/// use netcl_data::{DataLoader, ImageSplits};
///
/// let queue = manager().get("auto")?.queue;
/// let loader = DataLoader::of(ImageSplits::digits()?.train).batch_size(64).shuffle(true).workers(1).build()?;
/// for batch in on_device(loader.epoch(0)?, &queue)?.take(3) {
///     let batch = batch?;
///     let images = batch.get(0).and_then(|images| images.tensor()).unwrap();
///     assert_eq!(images.shape()[..], [64, 1, 8, 8]);
/// }
/// # Ok::<(), netcl_augment::Error>(())
/// ```
///
/// # Errors
/// If no thread can be started.
pub fn on_device(epoch: Epoch<Sample>, queue: &Queue) -> Result<OnDevice> {
    let uploader = Uploader::new(queue);
    OnDevice::with(epoch, move |batch| uploader.upload(batch))
}

impl<T: Send + 'static> OnDevice<T> {
    /// As [`on_device`], with a function of one's own that makes batches ready: for uploads that are changed on the device, or fields that
    /// stay on the host.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn with<B: Send + 'static>(
        mut epoch: Epoch<B>,
        mut ready: impl FnMut(B) -> Result<T> + Send + 'static,
    ) -> Result<OnDevice<T>> {
        let state = epoch.state();
        let (sender, batches) = sync_channel(READY);
        let work = move || {
            while let Some(batch) = epoch.next() {
                let batch = batch.map_err(Error::Data).and_then(&mut ready);
                // Nobody takes it: the loop has ended.
                if sender.send((batch, epoch.state())).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("netcl-upload".to_owned()).spawn(work);
        let thread =
            thread.map_err(|error| Error::argument("on_device", format!("no thread can be started: {error}")))?;
        Ok(OnDevice { batches: Some(batches), thread: Some(thread), state })
    }
}

impl<T> OnDevice<T> {
    /// What to hand to [`DataLoader::resume`](netcl_data::DataLoader::resume) later: batches that were made ready but not handed over do not
    /// count.
    pub fn state(&self) -> LoaderState {
        self.state
    }
}

impl<T> Iterator for OnDevice<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if let Some((batch, state)) = self.batches.as_ref().and_then(|batches| batches.recv().ok()) {
            self.state = state;
            return Some(batch);
        }
        // The thread has ended: with the epoch, or by a panic.
        let panic = self.thread.take()?.join().err()?;
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Some(Err(Error::Data(netcl_data::Error::Panic { what: text.unwrap_or("without a message").to_owned() })))
    }
}

impl<T> Drop for OnDevice<T> {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has nobody to go to.
            let _ = thread.join();
        }
    }
}
