//! The exchange of gradients while backward still runs.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use netcl_core::kernels::launch::is_repeating;
use netcl_nn::autograd::Tensor;
use netcl_nn::autograd::graph::HookHandle;

use super::gradients::{BUCKET_BYTES, Bucket, buckets, check_share, described, reduce};
use crate::error::{Error, Result};
use crate::group::Group;

const CALL: &str = "sync_grads";

/// Sums gradients over ranks as [`Group::sync_grads`] does, with the same bits, but begins while backward runs: a thread exchanges a
/// bucket as soon as all of its gradients are there.
///
/// Between the beginning of backward and the end of [`OverlappedSync::sync_grads`] the thread uses the group, so no other thread may: a
/// model with synchronised batch norm needs a second group for it, or [`Group::sync_grads`]. In a captured step all of the exchange
/// happens in [`OverlappedSync::sync_grads`]: a capture sees the launches of its own thread only.
///
/// ```
/// use netcl_distributed::data_parallel::OverlappedSync;
/// use netcl_distributed::{Group, Threads};
/// use netcl_nn::autograd::{Tensor, manager, ops::{elementwise::mul, reduce::sum}};
///
/// std::thread::scope(|scope| {
///     for group in Threads::new(2).into_iter().map(Group::new) {
///         scope.spawn(move || {
///             let queue = manager().cpu().queue;
///             let weight = Tensor::from_host(&queue, &[1.0f32, 2.0], [2]).unwrap().with_grad();
///             let sync = OverlappedSync::new(&group, &[weight.clone()], 0.5).unwrap();
///             let x = Tensor::full(&queue, [2], weight.dtype(), group.rank() as f64).unwrap();
///             sum(&mul(&weight, &x).unwrap(), (), false).unwrap().backward().unwrap();
///             sync.sync_grads().unwrap();
///             assert_eq!(weight.grad().unwrap().to_host::<f32>().unwrap(), [0.5, 0.5]);
///         });
///     }
/// });
/// ```
pub struct OverlappedSync {
    group: Group,
    shared: Arc<Shared>,
    /// What the thread has exchanged, in the order of buckets.
    done: Mutex<Receiver<Result<Vec<Tensor>>>>,
    times: Arc<Mutex<Vec<(Instant, Instant)>>>,
    hooks: Vec<HookHandle>,
}

/// What hooks see.
struct Shared {
    parameters: Vec<Tensor>,
    buckets: Vec<Bucket>,
    progress: Mutex<Progress>,
}

/// How far this step is.
struct Progress {
    share: f64,
    paused: bool,
    /// Whose gradients have arrived.
    arrived: Vec<bool>,
    /// How many buckets the thread was given. All ranks exchange them in the same order, so one waits for those before it.
    given: usize,
    /// A parameter that got another gradient after its bucket was given away.
    late: Option<usize>,
    /// Closed when the hooks are gone, which ends the thread.
    work: Option<Sender<Vec<Tensor>>>,
}

impl OverlappedSync {
    /// Watches the gradients of these parameters, those of them that require one. `share` is the part of the global batch that this
    /// rank sees: `1.0 / size` where all see as much.
    ///
    /// # Errors
    /// If ranks have different parameters, or one is lost.
    pub fn new(group: &Group, parameters: &[Tensor], share: f64) -> Result<OverlappedSync> {
        OverlappedSync::with_buckets(group, parameters, share, BUCKET_BYTES)
    }

    /// [`OverlappedSync::new`] with buckets of so many bytes.
    ///
    /// # Errors
    /// As [`OverlappedSync::new`].
    pub fn with_buckets(group: &Group, parameters: &[Tensor], share: f64, bytes: usize) -> Result<OverlappedSync> {
        check_share(share)?;
        let wanted = parameters.iter().map(Tensor::latest).filter(|parameter| parameter.requires_grad());
        let parameters: Vec<Tensor> = wanted.collect();
        group.agree(CALL, &described(&parameters))?;
        let (work, tasks) = channel::<Vec<Tensor>>();
        let (results, done) = channel();
        let (ranks, times) = (group.clone(), Arc::new(Mutex::new(Vec::new())));
        let noted = times.clone();
        std::thread::Builder::new()
            .name("netcl-gradients".to_owned())
            .spawn(move || {
                for flats in tasks {
                    let begin = Instant::now();
                    let result = reduce(&ranks, &flats).map(|()| flats);
                    noted.lock().unwrap_or_else(PoisonError::into_inner).push((begin, Instant::now()));
                    if results.send(result).is_err() {
                        return;
                    }
                }
            })
            .map_err(|problem| Error::argument(CALL, format!("no thread for the exchange: {problem}")))?;
        let progress = Progress {
            share,
            paused: false,
            arrived: vec![false; parameters.len()],
            given: 0,
            late: None,
            work: Some(work),
        };
        let buckets = buckets(&parameters, |_| true, bytes);
        let shared = Arc::new(Shared { parameters, buckets, progress: Mutex::new(progress) });
        let mut sync =
            OverlappedSync { group: group.clone(), shared, done: Mutex::new(done), times, hooks: Vec::new() };
        for (at, parameter) in sync.shared.parameters.iter().enumerate() {
            let shared = sync.shared.clone();
            // The hook holds the parameter that holds the hook: `drop` takes it away.
            sync.hooks.push(parameter.register_post_accumulate_grad_hook(move |_| {
                shared.arrive(at).map_err(Error::into_autograd)?;
                Ok(None)
            })?);
        }
        Ok(sync)
    }

    /// Changes this rank's share of the global batch, before backward.
    ///
    /// # Errors
    /// If it is not a number from 0.
    pub fn set_share(&self, share: f64) -> Result<()> {
        check_share(share)?;
        self.shared.lock().share = share;
        Ok(())
    }

    /// While paused, gradients are accumulated and nothing is exchanged: for all backward passes of a step but the last.
    pub fn set_paused(&self, paused: bool) {
        self.shared.lock().paused = paused;
    }

    /// When the exchange of each bucket began and ended, since the last time that this was asked: those before the end of backward
    /// cost no time of their own.
    pub fn take_times(&self) -> Vec<(Instant, Instant)> {
        std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Exchanges what is left and waits for the rest: afterwards all gradients are sums over ranks.
    ///
    /// # Errors
    /// If a rank is lost; if a second backward pass added to gradients that were exchanged already.
    pub fn sync_grads(&self) -> Result<()> {
        let shared = &*self.shared;
        let mut progress = shared.lock();
        if is_repeating() {
            return self.group.sync_grads(&shared.parameters, progress.share);
        }
        let left = shared.buckets.len() - progress.given;
        (0..left).try_for_each(|_| shared.give(&mut progress))?;
        let late = progress.late.take();
        progress.given = 0;
        progress.arrived.fill(false);
        drop(progress);
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = || Error::argument(CALL, "the thread that exchanges gradients has ended: see its message above");
        let flats = shared.buckets.iter().map(|_| done.recv().map_err(|_| gone())).collect::<Result<Vec<_>>>()?;
        let flats = flats.into_iter().collect::<Result<Vec<_>>>()?;
        let present = self.group.presence(&shared.parameters)?;
        if let Some(at) = late {
            let shape = shared.parameters[at].shape();
            let what = format!(
                "a second backward pass added to the gradient of parameter {at} (shape {shape}) after it was exchanged: pause \
                 the exchange (set_paused, in Python no_sync()) in all backward passes of a step but the last"
            );
            return Err(Error::argument(CALL, what));
        }
        let parameters = shared.latest();
        for (bucket, flats) in shared.buckets.iter().zip(&flats) {
            bucket.unpack(&parameters, flats, |at| present[at])?;
        }
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parameters where they are now: a model may move.
    fn latest(&self) -> Vec<Tensor> {
        self.parameters.iter().map(Tensor::latest).collect()
    }

    /// Notes a gradient, and gives every bucket to the thread that is complete by it.
    fn arrive(&self, at: usize) -> Result<()> {
        let mut progress = self.lock();
        if progress.paused || is_repeating() {
            return Ok(());
        }
        if std::mem::replace(&mut progress.arrived[at], true) {
            let given = &self.buckets[..progress.given];
            if given.iter().any(|bucket| bucket.members.contains(&at)) {
                progress.late.get_or_insert(at);
            }
            return Ok(());
        }
        while let Some(next) = self.buckets.get(progress.given) {
            if !next.members.iter().all(|&member| progress.arrived[member]) {
                break;
            }
            self.give(&mut progress)?;
        }
        Ok(())
    }

    /// Gives the next bucket to the thread.
    fn give(&self, progress: &mut Progress) -> Result<()> {
        let flats = self.buckets[progress.given].pack(&self.latest(), progress.share)?;
        progress.given += 1;
        if let Some(work) = &progress.work {
            // A thread that has ended is reported where its result is missing.
            let _ = work.send(flats);
        }
        Ok(())
    }
}

impl Drop for OverlappedSync {
    fn drop(&mut self) {
        self.hooks.iter().for_each(HookHandle::remove);
        self.shared.lock().work = None;
    }
}
