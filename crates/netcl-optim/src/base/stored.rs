//! An optimizer's state: out under plain names, and back in.

use std::collections::BTreeMap;

use netcl_autograd::Result;
use netcl_core::kernels::launch::at_once;
use netcl_core::shape::Shape;

use super::Base;
use super::arena::Member;
use crate::group::ParamGroup;
use crate::state::{State, StateCheck};

impl Base {
    pub(crate) fn state(&self) -> State {
        let mut state = State { numbers: self.group_numbers(), ..Default::default() };
        let steps = self.settled_steps();
        for (i, (member, steps)) in self.members.iter().zip(steps).enumerate().filter(|(_, (_, steps))| *steps > 0) {
            state.numbers.insert(format!("{i}.step"), steps as f64);
            for (row, name) in self.rule.state().iter().enumerate() {
                // A part of a row that was made for this parameter lies inside it: there is nothing that could fail.
                if let Ok(Some(kept)) = self.arenas[member.arena].kept(row, member, self.shape(member)) {
                    state.tensors.insert(format!("{i}.{name}"), kept.into());
                }
            }
        }
        state
    }

    pub(crate) fn gathered_state(&self) -> Result<State> {
        match &self.shards {
            Some(shards) => shards.gather(self.state(), self.rule.state(), &self.parameters()),
            None => Ok(self.state()),
        }
    }

    pub(crate) fn load_state(&mut self, state: &State) -> Result<()> {
        let steps: Vec<u64> =
            (0..self.members.len()).map(|i| state.numbers.get(&format!("{i}.step")).map_or(0, |s| *s as u64)).collect();
        self.check(state, &steps)?;
        self.follow()?;
        self.settle()?;
        let steps: Vec<u64> =
            steps.into_iter().enumerate().map(|(i, steps)| if self.owns(i) { steps } else { 0 }).collect();
        let seen = |i: usize| steps[i] > 0 && !self.rule.state().is_empty();
        for (i, member) in self.members.iter().enumerate().filter(|(i, _)| seen(*i)) {
            self.arenas[member.arena].flat(self.rule.initial())?;
            for (row, name) in self.rule.state().iter().enumerate() {
                let shape = self.shape(member);
                let kept = self.arenas[member.arena].kept(row, member, shape)?;
                if let (Some(kept), Some(tensor)) = (kept, state.tensors.get(&format!("{i}.{name}"))) {
                    at_once(|| kept.assign(&tensor.raw().to(kept.queue())?))?;
                }
            }
        }
        for (member, steps) in self.members.iter().zip(steps) {
            member.set_steps(steps);
        }
        for (i, group) in self.groups.iter().enumerate() {
            let number = |name: &str| state.number(&format!("groups.{i}.{name}"));
            group.set_learning_rate(number("lr"));
            group.set_weight_decay(number("weight_decay"));
            // One that never changed stays a fixed number of the kernel's table.
            if group.momentum().is_some_and(|momentum| momentum != number("momentum")) {
                group.set_momentum(number("momentum"));
            }
        }
        Ok(())
    }

    fn group_numbers(&self) -> BTreeMap<String, f64> {
        let mut numbers = BTreeMap::new();
        for (i, group) in self.groups.iter().enumerate() {
            numbers.insert(format!("groups.{i}.lr"), group.learning_rate());
            numbers.insert(format!("groups.{i}.weight_decay"), group.weight_decay());
            if let Some(momentum) = group.momentum() {
                numbers.insert(format!("groups.{i}.momentum"), momentum);
            }
        }
        numbers
    }

    /// The steps of each parameter without those that the device has skipped.
    fn settled_steps(&self) -> Vec<u64> {
        let mut steps: Vec<u64> = self.members.iter().map(Member::steps).collect();
        for arena in &self.arenas {
            // If the device cannot be read any more, the tensors cannot either, and whoever reads them hears of it.
            if let Ok((members, skipped)) = arena.skipped() {
                for &member in members {
                    steps[member] = steps[member].saturating_sub(skipped);
                }
            }
        }
        steps
    }

    fn shape(&self, member: &Member) -> &Shape {
        self.parameter(member).shape()
    }

    /// Everything that does not fit, in one error.
    fn check(&self, state: &State, steps: &[u64]) -> Result<()> {
        let mut check = StateCheck::default();
        let numbers = self.group_numbers();
        let count = self.groups.iter().map(|group: &ParamGroup| group.params().len()).sum::<usize>();
        let step =
            |name: &str| name.strip_suffix(".step").and_then(|i| i.parse::<usize>().ok()).is_some_and(|i| i < count);
        check.numbers(state, numbers.keys().map(String::as_str), step);
        let mut tensors = BTreeMap::new();
        for (i, (member, steps)) in self.members.iter().zip(steps).enumerate() {
            for name in self.rule.state().iter().map(|name| format!("{i}.{name}")) {
                // What has a tensor must have a step, and the other way round.
                if *steps > 0 || state.tensors.contains_key(&name) {
                    tensors.insert(name, self.shape(member).clone());
                }
            }
            let kept = self.rule.state().iter().any(|name| state.tensors.contains_key(&format!("{i}.{name}")));
            if kept && *steps == 0 {
                check.problem(format!("has no number \"{i}.step\""));
            }
        }
        check.tensors(state, &tensors);
        check.finish(self.rule.op())
    }
}
