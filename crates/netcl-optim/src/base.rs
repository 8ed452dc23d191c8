//! What all optimizers have in common: groups, flat state, one launch for all parameters of a dtype.

mod arena;
mod stored;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netcl_autograd::{Error, Result, Tensor};
use netcl_core::kernels::elementwise::Number;
use netcl_core::kernels::expr::Graph;
use netcl_core::kernels::launch::at_once;
use netcl_core::kernels::many::{Many, Segment, Segments, Target, Verdict, sum_of_squares, verdict};
use netcl_core::tensor::Tensor as Raw;

use crate::group::ParamGroup;
use crate::optimizer::{GradScale, StepOptions};
use crate::rule::{Rule, Terms, Updated};
use crate::shards::Shards;
use arena::{Arena, Member};

/// The part that all optimizers share; see [`Rule`] for an optimizer of your own.
#[derive(Debug)]
pub struct Base {
    id: u64,
    rule: Box<dyn Rule>,
    groups: Vec<ParamGroup>,
    /// For each parameter of all groups, in order.
    members: Vec<Member>,
    /// One for each dtype and device.
    arenas: Vec<Arena>,
    /// The kernels made so far, by form: the update and, where the rule has one, the direction before it.
    updates: Vec<(Form, Update)>,
    /// The storages of all parameters: a gradient that lies in one of them is copied before it is overwritten.
    storages: HashSet<usize>,
    /// Which parameters this rank updates, where ranks have divided them.
    shards: Option<Box<dyn Shards>>,
}

/// Which parts of an update there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    decay: bool,
    /// Gradients are multiplied by a factor on the device.
    scaled: bool,
    /// The update may be skipped.
    skips: bool,
}

/// The kernels of a step.
#[derive(Clone, Debug)]
struct Update {
    direction: Option<Arc<Many>>,
    update: Arc<Many>,
}

/// A parameter with its gradient, both dense.
struct Pair {
    member: usize,
    parameter: Raw,
    gradient: Raw,
    /// The parameter itself, where it is not dense: the updated copy is written back.
    home: Option<Raw>,
}

impl Base {
    /// A base with its first group.
    ///
    /// # Errors
    /// For no parameters, for parameters that are given twice or are not leaves, and for settings out of range.
    pub fn new(rule: impl Rule, params: Vec<Tensor>, learning_rate: f64, weight_decay: f64) -> Result<Base> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let mut base = Base {
            id: MADE.fetch_add(1, Ordering::Relaxed),
            rule: Box::new(rule),
            groups: Vec::new(),
            members: Vec::new(),
            arenas: Vec::new(),
            updates: Vec::new(),
            storages: HashSet::new(),
            shards: None,
        };
        base.add_group(params, learning_rate, weight_decay)?;
        Ok(base)
    }

    /// A number that no other optimizer of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn groups(&self) -> &[ParamGroup] {
        &self.groups
    }

    pub(crate) fn add_group(&mut self, params: Vec<Tensor>, learning_rate: f64, weight_decay: f64) -> Result<()> {
        self.follow()?;
        params.iter().try_for_each(|parameter| self.rule.check(parameter))?;
        let momentum = self.rule.momentum();
        let group = ParamGroup::new(self.rule.op(), params, learning_rate, weight_decay, momentum, &self.groups)?;
        self.settle()?;
        if let Some(shards) = &mut self.shards {
            shards.add(group.params());
        }
        for (at, parameter) in group.params().iter().enumerate() {
            let (arena, flat) = self.reserve(self.members.len(), parameter);
            self.members.push(Member::new(self.groups.len(), at, arena, flat));
        }
        self.groups.push(group);
        // What is kept moves to its new place now: it may be asked for before the next step.
        self.arenas.iter_mut().try_for_each(|arena| arena.grow(self.rule.initial()))
    }

    /// Divides the parameters among ranks: from now on a step updates those that this rank owns and then brings all others from their
    /// owners. State is kept for those alone; [`Optimizer::gathered_state`](crate::Optimizer::gathered_state) is that of all. Any state
    /// loads on any rank, which takes its part of it.
    ///
    /// # Errors
    /// If they are divided already; what the device says.
    pub fn shard(&mut self, mut shards: Box<dyn Shards>) -> Result<()> {
        if self.shards.is_some() {
            return Err(Error::argument(self.rule.op(), "ranks have divided the parameters already; do it once"));
        }
        shards.add(&self.parameters());
        self.shards = Some(shards);
        self.rehome()
    }

    fn owns(&self, member: usize) -> bool {
        self.shards.as_ref().is_none_or(|shards| shards.owns(member))
    }

    /// All parameters, in the order of groups.
    fn parameters(&self) -> Vec<Tensor> {
        self.groups.iter().flat_map(ParamGroup::params).cloned().collect()
    }

    /// A place for what is kept for a parameter: an arena, and where in its rows.
    fn reserve(&mut self, member: usize, parameter: &Tensor) -> (usize, usize) {
        self.storages.insert(Arc::as_ptr(parameter.storage()) as usize);
        let known = self.arenas.iter().position(|arena| arena.holds(parameter));
        let arena = known.unwrap_or_else(|| {
            self.arenas.push(Arena::new(parameter, self.rule.state().len()));
            self.arenas.len() - 1
        });
        let kept = if self.owns(member) { parameter.size() } else { 0 };
        (arena, self.arenas[arena].reserve(kept))
    }

    /// Where parameters were moved (another device, another dtype), what is kept for them moves too.
    pub(super) fn follow(&mut self) -> Result<()> {
        if !self.groups.iter().flat_map(ParamGroup::params).any(Tensor::has_moved) {
            return Ok(());
        }
        self.rehome()
    }

    /// Gives all parameters, where they are now, new places, and takes along what is kept for them.
    fn rehome(&mut self) -> Result<()> {
        self.settle()?;
        self.groups.iter_mut().for_each(ParamGroup::follow);
        let before = std::mem::take(&mut self.arenas);
        self.storages.clear();
        let mut pending = Vec::new();
        for i in 0..self.members.len() {
            let parameter = self.parameter(&self.members[i]).clone();
            let (arena, flat) = self.reserve(i, &parameter);
            let moved = self.members[i].moved(arena, flat);
            let old = std::mem::replace(&mut self.members[i], moved);
            if !self.owns(i) {
                old.set_steps(0);
                continue;
            }
            for row in 0..self.rule.state().len() {
                let Some(kept) = before[old.arena].kept(row, &old, parameter.shape())? else { continue };
                pending.push((i, row, kept));
            }
        }
        // Only now are the arenas as large as they will be.
        for (i, row, kept) in pending {
            let arena = &mut self.arenas[self.members[i].arena];
            arena.flat(self.rule.initial())?;
            if let Some(place) = arena.kept(row, &self.members[i], kept.shape())? {
                at_once(|| place.assign(&kept.to(place.queue())?))?;
            }
        }
        Ok(())
    }

    fn parameter(&self, member: &Member) -> &Tensor {
        &self.groups[member.group].params()[member.at]
    }

    pub(crate) fn step(&mut self, options: &StepOptions) -> Result<Option<Tensor>> {
        netcl_autograd::jit::refuse_tracing("step")?;
        let _scope = netcl_autograd::observe::enter(|| "optimizer".into());
        self.follow()?;
        let mut pairs = self.pairs()?;
        // Of all parameters, also those that other ranks update.
        let is_used: Vec<bool> = pairs.iter().map(|pairs| !pairs.is_empty()).collect();
        let list = |pairs: &Vec<Pair>| pairs.iter().map(|pair| pair.gradient.clone()).collect();
        let gradients: Option<Vec<Vec<Raw>>> = options.needs_norm().then(|| pairs.iter().map(list).collect());
        if self.shards.is_some() {
            pairs.iter_mut().for_each(|pairs| pairs.retain(|pair| self.owns(pair.member)));
        }
        let form = Form {
            decay: self.groups.iter().any(|group| group.weight_decay() != 0.0),
            scaled: options.controls(),
            skips: options.may_skip(),
        };
        let update = self.update(form);
        for (arena, pairs) in self.arenas.iter_mut().zip(&pairs) {
            arena.prepare(pairs, &self.members, &*self.rule, options)?;
        }
        let sums = gradients.map(|gradients| self.sums(&gradients)).transpose()?.flatten();
        let mut norm = None;
        for (i, pairs) in pairs.iter_mut().enumerate().filter(|(i, _)| is_used[*i]) {
            if form.scaled {
                let (controls, at) = self.arenas[i].controls()?;
                verdict(&decide(options, sums.as_ref()), controls, at)?;
                if options.needs_norm() {
                    norm.get_or_insert(self.arenas[i].norm()?);
                }
            }
            self.arenas[i].count()?;
            if let Some(direction) = &update.direction {
                for pair in pairs.iter_mut() {
                    pair.gradient = pair.gradient.duplicate()?;
                }
                self.arenas[i].run(direction, pairs, &self.groups, &*self.rule)?;
                for pair in pairs.iter_mut() {
                    pair.gradient = self.rule.transform(&pair.gradient)?;
                }
            }
            self.arenas[i].run(&update.update, pairs, &self.groups, &*self.rule)?;
            for pair in pairs {
                if let Some(home) = &pair.home {
                    home.assign(&pair.parameter)?;
                }
            }
        }
        if let Some(shards) = &self.shards {
            shards.spread(&self.parameters())?;
        }
        Ok(norm.map(Tensor::from))
    }

    pub(crate) fn advance(&mut self) {
        for arena in &self.arenas {
            arena.advance();
        }
    }

    /// Parameters that have a gradient, for each arena.
    fn pairs(&self) -> Result<Vec<Vec<Pair>>> {
        let op = self.rule.op();
        let mut pairs: Vec<Vec<Pair>> = self.arenas.iter().map(|_| Vec::new()).collect();
        for (i, member) in self.members.iter().enumerate() {
            let parameter = self.parameter(member);
            let Some(grad) = parameter.grad().filter(|_| parameter.size() > 0) else { continue };
            if grad.shape() != parameter.shape() {
                let (got, expected) = (grad.shape(), parameter.shape());
                let what = format!("parameter {i} has shape {expected}, its gradient has shape {got}");
                return Err(Error::argument(op, what));
            }
            parameter.queue().check_same_device(op, grad.queue())?;
            let inside = self.storages.contains(&(Arc::as_ptr(grad.storage()) as usize));
            let gradient = grad.raw().cast(parameter.dtype())?;
            let gradient = if inside { gradient.duplicate()? } else { gradient.contiguous()? };
            let dense = parameter.layout().is_contiguous();
            pairs[member.arena].push(Pair {
                member: i,
                parameter: parameter.raw().contiguous()?,
                gradient,
                home: (!dense).then(|| parameter.raw().clone()),
            });
        }
        Ok(pairs)
    }

    /// Partial sums of the squares of all gradients.
    fn sums(&self, gradients: &[Vec<Raw>]) -> Result<Option<Raw>> {
        let segment = |gradient: &Raw| Segment { count: gradient.size(), flat: 0, set: 0 };
        let divided: Vec<Segments> = match &self.shards {
            Some(_) => gradients.iter().map(|list| Segments::new(list.iter().map(segment).collect())).collect(),
            None => Vec::new(),
        };
        let mut parts = Vec::new();
        for (i, list) in gradients.iter().enumerate().filter(|(_, list)| !list.is_empty()) {
            let segments = divided.get(i).or_else(|| self.arenas[i].segments());
            parts.extend(segments.map(|segments| (segments, list.as_slice())));
        }
        if parts.is_empty() { Ok(None) } else { Ok(Some(sum_of_squares(&parts)?)) }
    }

    /// The update of a form; made once.
    fn update(&mut self, form: Form) -> Update {
        if let Some((_, update)) = self.updates.iter().find(|(known, _)| *known == form) {
            return update.clone();
        }
        let rule = &*self.rule;
        let direction = rule.is_staged().then(|| self.kernel(form, 1, |terms| rule.direction(terms)));
        // A direction is unscaled already.
        let last = Form { scaled: form.scaled && direction.is_none(), ..form };
        let made = Update { direction, update: self.kernel(last, 0, |terms| rule.update(terms)) };
        self.updates.push((form, made.clone()));
        made
    }

    /// A formula as a kernel that writes to one of the lists (parameters, gradients) and to the rows of what is kept.
    fn kernel(&self, form: Form, target: usize, formula: impl for<'g> Fn(&Terms<'g>) -> Updated<'g>) -> Arc<Many> {
        let rule = &*self.rule;
        let rows = rule.state().len();
        let settings = self.groups.first().map_or(0, |group| rule.settings(group).len());
        let g = Graph::new();
        let (p, grad) = (g.input(0), g.input(1));
        let state: Vec<_> = (0..rows).map(|r| g.input(2 + r)).collect();
        let control = |c: usize| g.input(2 + rows + c);
        let step = g.scalar(2);
        let terms = Terms {
            p,
            grad: if form.scaled { grad * control(0) } else { grad },
            state: state.clone(),
            lr: g.scalar(0),
            weight_decay: form.decay.then(|| g.scalar(1)),
            step: if form.skips { step - control(2) } else { step },
            settings: (0..settings).map(|s| g.scalar(3 + s)).collect(),
        };
        let updated = formula(&terms);
        let written = updated.state.len();
        let mut outputs = vec![updated.p];
        outputs.extend(updated.state);
        if form.skips {
            for (output, before) in outputs.iter_mut().zip(std::iter::once(p).chain(state)) {
                *output = control(1).select(before, *output);
            }
        }
        let targets: Vec<Target> = std::iter::once(Target::List(target)).chain((0..written).map(Target::Row)).collect();
        let controls = match (form.scaled, form.skips) {
            (_, true) => 3,
            (true, false) => 1,
            (false, false) => 0,
        };
        let expr = g.finish_with(&outputs, 2 + rows + controls, 3 + settings);
        Many::new(rule.label(), expr, 2, rows, targets)
    }

    /// Takes skipped steps, which only the device knows of, out of the counts.
    fn settle(&mut self) -> Result<()> {
        for arena in &mut self.arenas {
            arena.settle(&self.members)?;
        }
        Ok(())
    }
}

/// What the device decides by.
fn decide<'a>(options: &'a StepOptions, sums: Option<&'a Raw>) -> Verdict<'a> {
    let (inverse, scale) = match &options.grad_scale {
        None => (1.0, None),
        Some(GradScale::Number(scale)) => (1.0 / scale, None),
        Some(GradScale::Device(scale)) => (1.0, Some(scale.raw())),
    };
    Verdict {
        sums,
        inverse_scale: Number::Value(inverse),
        scale,
        max_norm: options.max_norm.map(Number::Value),
        found_inf: options.found_inf.as_ref().map(Tensor::raw),
        skip_non_finite: options.skip_non_finite,
    }
}
