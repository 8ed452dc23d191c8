//! A model that runs on several devices of one process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use netcl_nn::autograd::ops::layout::{cat, to};
use netcl_nn::autograd::{Queue, Result as AutogradResult, Tensor, no_grad};
use netcl_nn::{Member, MemberMut, Module, Role};

use super::joint_norm::{Meeting, refuse_recording};
use super::replicas::{Replicas, moved, shard_batch};
use crate::error::{Error, Result};

/// Why speeds are not measured in a captured step.
pub const MEASURES: &str = "devices are measured by running them, which a captured step does not do while it is recorded: run one batch \
                            (or give weights) before";

/// A model whose batches are divided over devices: each runs its part, and the results come together on the first.
///
/// It is the model on the first device with all its names: parameters, optimizers, files and modes are as without it, and files load on
/// any number of devices. Gradients of all devices arrive at the model's own parameters, summed in the order of devices. Statistics
/// that a forward pass updates are those of the first device, as in PyTorch, or of the whole batch with
/// [`sync_batch_norm`](DataParallel::sync_batch_norm). A step with it may be captured.
///
/// ```
/// use netcl_distributed::data_parallel::DataParallel;
/// use netcl_nn::autograd::{Tensor, manager};
/// use netcl_nn::{Linear, Module};
///
/// let queue = manager().cpu().queue;
/// let model = DataParallel::new(&[queue.clone(), queue.clone()], |queue| Linear::new(queue, 4, 2))?;
/// let y = model.forward(&Tensor::full(&queue, [5, 4], netcl_nn::autograd::DType::F32, 1.0)?)?;
/// assert_eq!(y.shape().to_vec(), [5, 2]);
/// # Ok::<(), netcl_distributed::Error>(())
/// ```
pub struct DataParallel<M> {
    model: M,
    /// The models of the other devices. Their tensors are replaced before each forward pass.
    others: Mutex<Vec<M>>,
    replicas: Replicas,
    weights: Option<Vec<f64>>,
    /// Where the parts of a batch meet for batch norm over all of them.
    meeting: Option<Arc<Meeting>>,
}

impl<M: Module> DataParallel<M> {
    /// A model on each device. `build` makes one; the values of the first count.
    ///
    /// # Errors
    /// For no devices; what `build` returns.
    pub fn new(devices: &[Queue], mut build: impl FnMut(&Queue) -> AutogradResult<M>) -> Result<DataParallel<M>> {
        let replicas = Replicas::new(devices.to_vec())?;
        let mut models = devices.iter().map(&mut build).collect::<AutogradResult<Vec<M>>>()?;
        let model = models.remove(0);
        Ok(DataParallel { model, others: Mutex::new(models), replicas, weights: None, meeting: None })
    }

    /// Makes all batch norm inside the model count over the whole batch in training, as on one device. Such a model, in training, cannot be
    /// a part of a captured step.
    ///
    /// # Errors
    /// What the model returns.
    pub fn sync_batch_norm(mut self) -> Result<DataParallel<M>> {
        let meeting = Arc::new(Meeting::default());
        meeting.invite(&mut self.model, 0)?;
        let others = self.others.get_mut().unwrap_or_else(PoisonError::into_inner);
        others.iter_mut().enumerate().try_for_each(|(at, model)| meeting.invite(model, at + 1))?;
        self.meeting = Some(meeting);
        Ok(self)
    }

    /// Divides batches by these weights, one per device, instead of equally.
    ///
    /// # Errors
    /// If they are not one number from 0 per device.
    pub fn set_weights(&mut self, weights: Option<Vec<f64>>) -> Result<()> {
        super::shard_lengths(1, self.replicas.queues().len(), weights.as_deref())?;
        self.weights = weights;
        Ok(())
    }

    /// The weights by which batches are divided; `None` for equal parts.
    pub fn weights(&self) -> Option<&[f64]> {
        self.weights.as_deref()
    }

    /// Measures how fast each device runs the model forwards on an input like those to come, and divides by that from now on.
    ///
    /// # Errors
    /// What the model returns.
    pub fn measure_weights(&mut self, input: &Tensor) -> Result<()> {
        refuse_recording(MEASURES)?;
        let _plain = no_grad();
        let others = self.prepared()?;
        let mut speeds = Vec::new();
        for (k, queue) in self.replicas.queues().iter().enumerate() {
            let model = if k == 0 { &self.model } else { &others[k - 1] };
            let input = to(input, queue)?;
            // The first run compiles.
            model.forward(&input)?.wait()?;
            let start = Instant::now();
            model.forward(&input)?.wait()?;
            speeds.push(1.0 / start.elapsed().as_secs_f64().max(1e-9));
        }
        drop(others);
        self.weights = Some(speeds);
        Ok(())
    }

    /// The model of the first device.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The models of the other devices, as the first one is now.
    fn prepared(&self) -> Result<std::sync::MutexGuard<'_, Vec<M>>> {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let mut members = Members::default();
        members.collect(&self.model);
        let copies = self.replicas.copy(&members.parameters)?;
        for ((other, queue), copies) in others.iter_mut().zip(&self.replicas.queues()[1..]).zip(&copies[1..]) {
            let buffers = members.buffers.iter().map(|buffer| Ok(moved(buffer.raw(), queue)?.into()));
            let buffers = buffers.collect::<Result<Vec<Tensor>>>()?;
            let mut at = 0;
            members.put(other, copies, &buffers, &mut at);
        }
        Ok(others)
    }
}

impl<M: Module> Module for DataParallel<M> {
    fn forward(&self, input: &Tensor) -> AutogradResult<Tensor> {
        let run = || -> Result<Tensor> {
            let queues = self.replicas.queues();
            let parts = shard_batch(input, queues.len(), self.weights())?;
            let others = self.prepared()?;
            let mut runs = Vec::new();
            for (k, (part, queue)) in parts.iter().zip(queues).enumerate() {
                // A batch may have fewer samples than there are devices; one without any still has a shape to show.
                if part.shape()[0] > 0 || (input.shape()[0] == 0 && k == 0) {
                    let (model, part) = (if k == 0 { &self.model } else { &others[k - 1] }, to(part, queue)?);
                    runs.push((k, move || model.forward(&part)));
                }
            }
            let results = match self.meeting.as_ref().filter(|_| self.model.training() && runs.len() > 1) {
                Some(meeting) => meeting.run(runs)?,
                None => runs.into_iter().map(|(_, run)| run()).collect::<AutogradResult<Vec<_>>>()?,
            };
            let home = results.iter().map(|result| to(result, &queues[0])).collect::<AutogradResult<Vec<_>>>()?;
            Ok(cat(&home.iter().collect::<Vec<_>>(), 0)?)
        };
        run().map_err(Error::into_autograd)
    }

    fn visit<'m>(&'m self, see: &mut dyn FnMut(&str, Member<'m>)) {
        self.model.visit(see);
    }

    fn visit_mut<'m>(&'m mut self, see: &mut dyn FnMut(&str, MemberMut<'m>)) {
        self.model.visit_mut(see);
    }
}

/// What a model holds, in the order of its members.
#[derive(Default)]
struct Members {
    /// Each once, wherever it occurs.
    parameters: Vec<Tensor>,
    buffers: Vec<Tensor>,
    places: Vec<Place>,
}

enum Place {
    Parameter(usize),
    Buffer(usize),
    Absent,
    Mode(bool),
}

impl Members {
    fn collect(&mut self, model: &dyn Module) {
        let place = |list: &mut Vec<Tensor>, tensor: &Tensor| {
            list.iter().position(|known| known.is(tensor)).unwrap_or_else(|| {
                list.push(tensor.clone());
                list.len() - 1
            })
        };
        let mut children: Vec<&dyn Module> = Vec::new();
        model.visit(&mut |_, member| match member {
            Member::Parameter(tensor) => {
                let at = place(&mut self.parameters, tensor);
                self.places.push(Place::Parameter(at));
            }
            Member::Buffer(tensor) => {
                let at = place(&mut self.buffers, tensor);
                self.places.push(Place::Buffer(at));
            }
            Member::Absent(Role::Constant) | Member::Constant(_) => {}
            Member::Absent(_) => self.places.push(Place::Absent),
            Member::Mode(mode) => self.places.push(Place::Mode(mode)),
            Member::Child(child) => children.push(child),
        });
        children.into_iter().for_each(|child| self.collect(child));
    }

    /// Puts copies of everything into a model of the same structure.
    fn put(&self, model: &mut dyn Module, parameters: &[Tensor], buffers: &[Tensor], at: &mut usize) {
        let mut next = || {
            *at += 1;
            self.places.get(*at - 1)
        };
        let tensor = |place: Option<&Place>| match place {
            Some(Place::Parameter(at)) => Some(parameters[*at].clone()),
            Some(Place::Buffer(at)) => Some(buffers[*at].clone()),
            _ => None,
        };
        let mut children: Vec<&mut dyn Module> = Vec::new();
        model.visit_mut(&mut |_, member| match member {
            MemberMut::Tensor(Role::Constant, _) | MemberMut::Optional(Role::Constant, _) => {}
            MemberMut::Tensor(_, own) => *own = tensor(next()).unwrap_or_else(|| own.clone()),
            MemberMut::Optional(_, own) => *own = tensor(next()),
            MemberMut::Mode(own) => {
                if let Some(Place::Mode(mode)) = next() {
                    *own = *mode;
                }
            }
            MemberMut::Child(child) => children.push(child),
        });
        for child in children {
            self.put(child, parameters, buffers, at);
        }
    }
}
